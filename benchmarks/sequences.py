"""Measures the cost of sequences: 64 live ones at a served model, against the bare dynamic batcher.

Of several rounds the best counts. Where other processes use the machine, the CPU time of a request tells more
than the rate.

python -m benchmarks.sequences --seconds 1 --rounds 5
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import normalise
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.event_loop_thread import LoopThread
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from deployments.scheduling.dynamic.serve_batch import Execute, Item, ServeBatched
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
CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
"""
SCHEDULERS = {
    "dynamic": "dynamic_batching {}",
    "direct": "sequence_batching { direct {} }",
    "controls": "sequence_batching { direct {} " + CONTROLS + "}",
    "oldest": "sequence_batching { oldest { max_candidate_sequences: 64 } }",
}
INPUT = Tensor.from_array("INPUT0", np.zeros((1, 16), np.float32))


def straight(execute: Execute, max_rows: int, concurrent: int) -> ServeBatched:
    """Return a stand-in for `@serve.batch`, which works in a replica only."""

    async def batched(item: Item) -> None:
        await execute([item])

    return batched


class Client:
    """One sequence: its next request follows the response to its last."""

    def __init__(self, model: ServedModel, number: int) -> None:
        self._model = model
        self._number = number
        self.answers = 0
        self.stopped = False

    def send(self, start: bool = False) -> None:
        request = InferRequest("identity", "", (INPUT,), sequence_id=self._number, sequence_start=start)
        self._model.submit(request, self._receive)

    def _receive(self, response: InferResponse) -> None:
        if response.failure is not None:
            raise response.failure.error()
        self.answers += 1
        if not self.stopped:
            self.send()


class Cost(NamedTuple):
    """Seconds of the clock and of the CPU (all threads) for one request."""

    elapsed: float
    cpu: float


async def drive(model: ServedModel, seconds: float) -> Cost:
    """Return the cost of a request of `LIVE` clients."""
    clients = [Client(model, number) for number in range(1, LIVE + 1)]
    for client in clients:
        client.send(start=True)
    await asyncio.sleep(WARMUP_S)
    before, began, cpu = sum(client.answers for client in clients), time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    elapsed, cpu = time.monotonic() - began, time.process_time() - cpu
    answers = sum(client.answers for client in clients) - before
    for client in clients:
        client.stopped = True
    while model.outstanding:
        await asyncio.sleep(0.01)
    return Cost(elapsed / answers, cpu / answers)


def measure(scheduler: str, seconds: float) -> Cost:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "1").mkdir()
        config = normalise(text_format.Parse(CONFIG.format(scheduler=scheduler), mc.ModelConfig()))
        spec = ModelSpec(
            "identity", 1, directory, config.SerializeToString(), "identity:1", "", bytes(32), ""
        )
        plane = LoopThread("data-plane")
        model = load_model(spec, plane, straight)
        try:
            plane.call(model.open())
            return plane.call(drive(model, seconds), seconds + 30)
        finally:
            model.close(timeout=5)
            plane.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rounds = [
        {name: measure(scheduler, arguments.seconds) for name, scheduler in SCHEDULERS.items()}
        for _ in range(arguments.rounds)
    ]
    best = {
        name: Cost(*map(min, zip(*(costs[name] for costs in rounds), strict=True))) for name in SCHEDULERS
    }
    bare = best["dynamic"]
    for name, (elapsed, cpu) in best.items():
        print(
            f"{name:9} {1 / elapsed:8.0f} infer/s, {bare.elapsed / elapsed:.2f} of dynamic;"
            f" {cpu * 1e6:5.1f} us of CPU each, {bare.cpu / cpu:.2f} of dynamic"
        )


if __name__ == "__main__":
    main()
