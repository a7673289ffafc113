"""What sequences cost: 64 live ones at a served model in this process, against the bare dynamic batcher.

python -m benchmarks.sequences --seconds 3
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config_normalise import normalise
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.loop import LoopThread
from deployments.scheduling.dynamic import Execute, Item, ServeBatched
from deployments.served_model import ServedModel
from deployments.spec import ModelSpec

LIVE = 64
WARMUP_S = 0.5
CONFIG = """
name: "identity" backend: "identity" max_batch_size: 64
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
{scheduler}
"""
SCHEDULERS = {
    "dynamic": "dynamic_batching {}",
    "direct": "sequence_batching { direct {} }",
    "oldest": "sequence_batching { oldest { max_candidate_sequences: 64 } }",
}
INPUT = Tensor.of("INPUT0", np.zeros((1, 16), np.float32))


def straight(execute: Execute, max_rows: int, concurrent: int) -> ServeBatched:
    """Stands for `@serve.batch`, which works in a replica only."""

    async def batched(item: Item) -> None:
        await execute([item])

    return batched


class Client:
    """One sequence: its next request follows the answer to its last."""

    def __init__(self, model: ServedModel, number: int) -> None:
        self._model = model
        self._number = number
        self.answers = 0
        self.stopped = False

    def send(self, start: bool = False) -> None:
        request = InferRequest("identity", "", (INPUT,), sequence_id=self._number, sequence_start=start)
        self._model.submit(request, self._receive)

    def _receive(self, response: InferResponse) -> None:
        if response.error is not None:
            raise response.error
        self.answers += 1
        if not self.stopped:
            self.send()


async def drive(model: ServedModel, seconds: float) -> float:
    """Requests a second of `LIVE` clients."""
    clients = [Client(model, number) for number in range(1, LIVE + 1)]
    for client in clients:
        client.send(start=True)
    await asyncio.sleep(WARMUP_S)
    before, began = sum(client.answers for client in clients), time.monotonic()
    await asyncio.sleep(seconds)
    rate = (sum(client.answers for client in clients) - before) / (time.monotonic() - began)
    for client in clients:
        client.stopped = True
    while model.outstanding:
        await asyncio.sleep(0.01)
    return rate


def measure(scheduler: str, seconds: float) -> float:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "1").mkdir()
        config = normalise(text_format.Parse(CONFIG.format(scheduler=scheduler), mc.ModelConfig()))
        spec = ModelSpec(
            "identity", 1, directory, config.SerializeToString(), "identity:1", "", bytes(32), ""
        )
        plane = LoopThread("data-plane")
        model = ServedModel.load(spec, plane, straight)
        try:
            plane.call(model.open())
            return plane.call(drive(model, seconds), seconds + 30)
        finally:
            model.close(timeout=5)
            plane.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    rates = {name: measure(scheduler, arguments.seconds) for name, scheduler in SCHEDULERS.items()}
    for name, rate in rates.items():
        print(f"{name:8} {rate:10.0f} infer/s  {rate / rates['dynamic']:.2f} of dynamic")


if __name__ == "__main__":
    main()
