"""Memory of a server with a thousand open streams of chats, and of as many events of `generate_stream`.

python -m tests.long.openai_streams [--streams 1000] [--limit 100]

A decoupled Python model sends each request a token now and then until its client leaves. For each way of
asking a server is started anew, one process with the model in it; it answers a few streams, and is measured
(PSS) before, with all streams open, each of which has had several tokens, and after they were left. Ends
with status 1 where the streams of chats add more MiB than the limit, or a stream has not had its tokens.
Server and clients each have a file open for each stream (`ulimit -n`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil

from app.core.system.processes import proportional_memory
from tests.server import EngineServer, Server, wait_until

MODEL: Final = """
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.senders = []
        threading.Thread(target=self.send, daemon=True).start()

    def execute(self, requests):
        self.senders += [(request, request.get_response_sender()) for request in requests]

    def send(self):
        while True:
            began = list(self.senders)
            for each in began:
                request, sender = each
                if sender.is_cancelled():
                    self.senders.remove(each)
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    continue
                piece = pb_utils.Tensor("text_output", np.array([b"word "], object))
                sender.send(pb_utils.InferenceResponse([piece]))
                time.sleep(PAUSE_S / len(began))
            time.sleep(0.01)
"""
PAUSE_S: Final = 3.0
"""Between two tokens of a stream."""
CONFIG: Final = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: [1] }
output { name: "text_output" data_type: TYPE_STRING dims: [1] }
parameters { key: "openai" value { string_value: '{"chat_template": "chat.jinja"}' } }
"""
TEMPLATE: Final = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CHAT: Final = "openai"
WAYS: Final = {
    CHAT: (
        "/v1/chat/completions",
        {"model": "text", "stream": True, "messages": [{"role": "user", "content": "hello"}]},
    ),
    "generate": ("/v2/models/text/generate_stream", {"text_input": "hello"}),
}
WARM: Final = 10
TOKENS: Final = 3
ENDS_S: Final = 120.0
SETTLE_S: Final = 2 * PAUSE_S
"""Until the model knows that all clients have left."""
MIB: Final = 1 << 20


def memory(server: Server) -> float:
    """Return the MiB of a server, its children included."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    return proportional_memory(each.pid for each in (process, *process.children(recursive=True))) / MIB


class Streams:
    """Open streams of one way of asking, read as they come."""

    def __init__(self, port: int, way: str) -> None:
        path, body = WAYS[way]
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(data)}\r\n\r\n"
        self._port, self._request = port, head.encode() + data
        self._tasks: list[asyncio.Task[None]] = []
        self.tokens: list[int] = []

    async def open(self, count: int) -> None:
        """Open streams; return once each has had its tokens.

        Raises:
            TimeoutError: one has not.
            RuntimeError: one has ended.
        """
        self.tokens = [0] * count
        self._tasks = [asyncio.create_task(self._read(at)) for at in range(count)]
        ends = time.monotonic() + ENDS_S
        while min(self.tokens) < TOKENS:
            if any(task.done() for task in self._tasks):
                raise RuntimeError(f"a stream has ended: {[t for t in self._tasks if t.done()][:3]}")
            if time.monotonic() > ends:
                missing = sum(each < TOKENS for each in self.tokens)
                raise TimeoutError(f"{missing} of {count} streams have not had {TOKENS} tokens")
            await asyncio.sleep(0.1)

    async def leave(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, at: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(self._request)
            while data := await reader.read(1 << 12):
                self.tokens[at] += data.count(b"word ")
            raise RuntimeError("the server has closed the connection")
        finally:
            writer.transport.abort()


async def measure(server: Server, way: str, count: int) -> list[float]:
    """Return the MiB before, with and after streams."""
    streams = Streams(server.http_port, way)
    await streams.open(WARM)
    await streams.leave()
    await asyncio.sleep(SETTLE_S)
    found = [memory(server)]
    await streams.open(count)
    found.append(memory(server))
    await streams.leave()
    await asyncio.sleep(SETTLE_S)
    return [*found, memory(server)]


def write(repository: Path) -> None:
    """Write the model."""
    version = repository / "text" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL.replace("PAUSE_S", str(PAUSE_S)))
    (version / "chat.jinja").write_text(TEMPLATE)
    (version.parent / "config.pbtxt").write_text(CONFIG)


def added(scratch: Path, way: str, count: int) -> float:
    """Print a line of a way of asking; return the MiB that streams add ."""
    flags = [f"--model-repository={scratch}/models", "--allow-openai=true"]
    server = EngineServer(flags, scratch / f"{way}.log").start()
    try:
        wait_until(lambda: server.model_ready("text"), 30, "the model is ready")
        before, open_, after = asyncio.run(measure(server, way, count))
    finally:
        server.stop()
    more = open_ - before
    print(f"{way:10} {before:7.1f} {open_:7.1f} {after:7.1f}; {1024 * more / count:.1f} KiB each", flush=True)
    return more


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # who ends this ends the server too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--limit", type=float, default=100.0, help="MiB that chats may add")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write(scratch / "models")
        print(f"{given.streams} streams; MiB before, with them and after", flush=True)
        found = {way: added(scratch, way, given.streams) for way in WAYS}
    return int(found[CHAT] > given.limit)


if __name__ == "__main__":
    sys.exit(main())
