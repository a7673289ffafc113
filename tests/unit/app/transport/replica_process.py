"""A model replica in a process of its own: echoes, holds, streams; drains when its standard input says so."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from app.core.inference import Cancel, Sink, cancel_nothing
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.channel.server import ChannelServer


class Replica:
    def __init__(self, released: Path) -> None:
        self._released = released

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        outputs = tuple(Tensor(t.name, t.datatype, t.shape, t.data) for t in request.inputs)
        response = InferResponse(request.model_name, "1", outputs, request.id)
        if request.model_name == "slow":
            asyncio.get_running_loop().call_later(0.05, sink, response)
        elif request.model_name == "busy":  # as a model does that keeps the interpreter lock
            while not self._released.exists():
                time.sleep(0.001)
            sink(response)
        elif request.model_name != "hold":
            sink(response)
        return cancel_nothing

    async def control(self, verb: str, payload: Any) -> Any:
        return payload


async def main(path: str, key: bytes) -> None:
    server = ChannelServer(Replica(Path(path).with_name("released")), key)
    print(*await server.listen(path, "127.0.0.1"), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await server.drain(10)
    await server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], bytes.fromhex(sys.argv[2])))
