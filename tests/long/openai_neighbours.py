"""A plain client of OpenAI's API beside hostile ones: how long its chats take, and beside an ordinary client.

python -m tests.long.openai_neighbours [--seconds 2] [--rounds 3] [KIND ...]

A plain client asks for one chat after the other. Each kind of hostile client is another process with a few
connections, which does its worst as fast as it can; so does, in turn, an ordinary one, which asks for as
much of the server, and is answered. The plain client's p50 and p99 beside either are told, and their ratio: a
hostile client may take no more from others than an ordinary one does. Ends with status 1 where the median of
the ratios of p50 is above `--limit`. Figures need a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.server import EngineServer

MODEL: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for at in range(PIECES):
                piece = np.array([b"word " * WORDS], object)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", piece)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG: Final = """
backend: "python"
model_transaction_policy {{ decoupled: true }}
instance_group {{ count: 2 kind: KIND_CPU }}
input {{ name: "text_input" data_type: TYPE_STRING dims: [1] }}
output {{ name: "text_output" data_type: TYPE_STRING dims: [1] }}
parameters {{ key: "openai" value {{ string_value: '{{"chat_template": "{template}"}}' }} }}
"""
PLAIN: Final = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ENDLESS: Final = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
MODELS: Final = {"plain": (10, 1, PLAIN), "long": (2000, 2000, PLAIN), "endless": (1, 1, ENDLESS)}
"""Pieces of a text, words of a piece, and the template of chats."""
MESSAGES: Final = b'{"model":"plain","messages":[%b1]}'
CONNECTIONS: Final = 2
SETTLE_S: Final = 0.5
"""After the end of a client, until the server has none of its requests any more."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Act = Callable[[int], Awaitable[None]]


def chat(**fields: Any) -> bytes:
    """Return a request for a chat."""
    body = json.dumps({"model": "plain", "messages": [{"role": "user", "content": "hello"}]} | fields)
    return posted(body.encode())


def posted(body: bytes) -> bytes:
    """Return a request with a body."""
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def with_arguments(size: int) -> bytes:
    """Return a request with a call of so many bytes."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps("x" * size)}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    return chat(
        messages=[
            {"role": "user", "content": "a"},
            called,
            {"role": "tool", "tool_call_id": "1", "content": ""},
        ]
    )


def nested(depth: int) -> bytes:
    """Return a request whose schema has schemas in it."""
    schema = b'{"type":"object","properties":{"a":' * depth + b"{}" + b"}}" * depth
    wanted = b'{"type":"json_schema","json_schema":{"name":"a","schema":%b}}' % schema
    head = b'{"model":"plain","messages":[{"role":"user","content":"a"}],"response_format":'
    return posted(head + wanted + b"}")


async def answered(connection: Connection, request: bytes) -> bytes:
    """Send a request; return its answer, whole or in chunks."""
    reader, writer = connection
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if b"ransfer-" not in head:
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return await reader.readexactly(size)
    found = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        found += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return found


def repeated(request: bytes) -> Act:
    """Return what makes a request again and again."""

    async def act(port: int) -> None:
        connection = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                await answered(connection, request)
        finally:
            connection[1].close()

    return act


async def reads_nothing(port: int) -> None:
    """Ask for long texts and read none of them, until the server ends them."""
    request = chat(model="long", stream=True)
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
    writer.write(request)
    await asyncio.sleep(0.5)
    writer.transport.abort()


async def leaves(port: int) -> None:
    """Leave at each byte of a request, and in the midst of answers."""
    request = chat(stream=True)
    for size in range(1, len(request) + 1):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request[:size])
        await writer.drain()
        writer.transport.abort()


ORDINARY: Final = "ordinary"
LONG: Final = "reads"
USUAL: Final = {"reads_nothing": LONG, **dict.fromkeys(("arguments", "objects", "numbers"), "prompt")}
"""What is as much work as a kind, and ordinary: of others it is short chats, without a pause."""
KINDS: Final[dict[str, Callable[[], Act]]] = {
    ORDINARY: lambda: repeated(chat(stream=True)),
    LONG: lambda: repeated(chat(model="long", stream=True)),
    "prompt": lambda: repeated(chat(messages=[{"role": "user", "content": "x" * (10 << 20)}])),
    "arguments": lambda: repeated(with_arguments(10 << 20)),
    "objects": lambda: repeated(posted(MESSAGES % (b'{"a":1},' * (10 << 17)))),
    "numbers": lambda: repeated(posted(MESSAGES % (b"1," * (5 << 20)))),
    "n": lambda: repeated(chat(n=10**9)),
    "stops": lambda: repeated(chat(stop=["x" * 65536] * 16)),
    "schemas": lambda: repeated(nested(60)),
    "deep_schemas": lambda: repeated(nested(20_000)),
    "template": lambda: repeated(chat(model="endless")),
    "reads_nothing": lambda: reads_nothing,
    "leaves": lambda: leaves,
}
"""What a client does: some of it once, and then again."""
HOSTILE: Final = [kind for kind in KINDS if kind not in (ORDINARY, *USUAL.values())]


def misbehave(kind: str, port: int, begun: Event) -> None:
    """Be a client of a kind, in a process of its own, until it is killed."""
    act = KINDS[kind]()

    async def forever() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                await act(port)

    async def all_at_once() -> None:
        begun.set()
        await asyncio.gather(*(forever() for _ in range(CONNECTIONS)))

    asyncio.run(all_at_once())


class Latency(NamedTuple):
    """Times of the plain client's chats, in ms."""

    p50: float
    p99: float


def measure(port: int, kind: str, seconds: float) -> Latency:
    """Return the plain client's times beside a client of a kind; "" for none."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    other = context.Process(target=misbehave, args=(kind, port, begun), daemon=True) if kind else None
    if other is not None:
        other.start()
        begun.wait(20)
    try:
        return asyncio.run(plain(port, seconds))
    finally:
        if other is not None:
            other.kill()
            other.join()
            time.sleep(SETTLE_S)


async def plain(port: int, seconds: float) -> Latency:
    """Ask for one chat after the other; return how long they took."""
    connection, request = await asyncio.open_connection("127.0.0.1", port), chat(stream=True)
    found, ends = list[float](), time.monotonic() + seconds + 0.3
    while time.monotonic() < ends:
        began = time.perf_counter()
        answer = await asyncio.wait_for(answered(connection, request), 30)
        found.append(1e3 * (time.perf_counter() - began))
        if answer.count(b"word ") != MODELS["plain"][0]:
            raise SystemExit(f"the plain client was answered {answer[-300:]!r}")
    connection[1].close()
    found = sorted(found[len(found) // 10 :])
    return Latency(statistics.median(found), found[int(0.99 * len(found))])


def write(repository: Path) -> None:
    """Write the models."""
    for name, (pieces, words, template) in MODELS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        text = MODEL.replace("PIECES", str(pieces)).replace("WORDS", str(words))
        (version / "model.py").write_text(text)
        (version / "chat.jinja").write_text(template)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(template="chat.jinja"))


def compare(port: int, kind: str, rounds: int, seconds: float) -> float:
    """Print a line of a kind; return the median ratio of p50."""
    pairs = list[tuple[Latency, Latency]]()
    for number in range(rounds):
        usual = USUAL.get(kind, ORDINARY)
        order = (kind, usual) if number % 2 else (usual, kind)
        told = {each: measure(port, each, seconds) for each in order}
        pairs.append((told[usual], told[kind]))
    columns = []
    for which in (0, 1):
        ratios = [theirs[which] / usual[which] for usual, theirs in pairs]
        usual, theirs = (
            statistics.median(side[which] for side in sides) for sides in zip(*pairs, strict=True)
        )
        columns.append(f"{usual:8.2f} {theirs:8.2f} {statistics.median(ratios):6.2f}")
    print(f"{kind:14}", *columns, flush=True)
    return statistics.median(theirs.p50 / usual.p50 for usual, theirs in pairs)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # who ends this ends the server too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=HOSTILE)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each, in turn")
    parser.add_argument("--limit", type=float, default=1.25, help="most that p50 may be beside the ordinary")
    given = parser.parse_args()
    if unknown := {*given.kinds} - {*KINDS}:
        parser.error(f"no kind: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch, "models"))
        flags = [f"--model-repository={scratch}/models", "--allow-openai=true", "--allow-metrics=false"]
        server = EngineServer(flags, Path(scratch, "log")).start()
        try:
            alone = measure(server.http_port, "", given.seconds)
            print(f"alone: p50 {alone.p50:.2f} ms, p99 {alone.p99:.2f} ms", flush=True)
            print(f"{'beside':14} p50, ms: ordinary, hostile, ratio; p99, ms: ordinary, hostile, ratio")
            told = [compare(server.http_port, kind, given.rounds, given.seconds) for kind in given.kinds]
            late = measure(server.http_port, "", given.seconds)
            print(f"alone, at the end: p50 {late.p50:.2f} ms, p99 {late.p99:.2f} ms")
        finally:
            server.stop()
    return int(max(told) > given.limit)


if __name__ == "__main__":
    sys.exit(main())
