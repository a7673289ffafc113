"""Compares the dynamic batcher with an ideal one that executes all queued requests whenever it is free.

python -m benchmarks.batching

Both sides serve the same callers, each with one request in flight, in this process: the served model of a
replica over the `identity` backend, whose execution takes a given time whatever the batch, and a thread that
sleeps as long. What comes between is the batcher's cost. `@serve.batch`, which works inside a replica only,
is left out. Rounds alternate; the ratio is the median of the rounds' own.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import normalise
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.event_loop_thread import LoopThread
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from deployments.scheduling.dynamic.serve_batch import without_serve
from deployments.spec import ModelSpec

MAX_BATCH = 64
CONFIG = """
name: "m" backend: "identity" max_batch_size: {rows}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: 16 }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }}
dynamic_batching {{}}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
"""
REQUEST = InferRequest("m", "", (Tensor("INPUT0", "FP32", (1, 16), bytes(64)),))

Submit = Callable[[InferRequest, Callable[[InferResponse], None]], object]


class Result(NamedTuple):
    """Throughput and mean batch size of one side in one round."""

    per_second: float
    mean_batch: float


class Ideal:
    """The ideal batcher: executes everything queued whenever it is free."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._waiting: list[Callable[[InferResponse], None]] = []
        self._wake = threading.Event()
        self.executions = 0
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, request: InferRequest, sink: Callable[[InferResponse], None]) -> None:
        self._waiting.append(sink)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            if batch:
                time.sleep(self._delay_s)
                self.executions += 1
                self._loop.call_soon_threadsafe(self._answer, batch)

    def _answer(self, batch: list[Callable[[InferResponse], None]]) -> None:
        response = InferResponse("m", "1", REQUEST.inputs)
        for sink in batch:
            sink(response)


async def load(submit: Submit, callers: int, seconds: float) -> int:
    """Return the requests answered to `callers` callers with one request in flight each."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    done = 0

    async def call() -> None:
        nonlocal done
        while loop.time() < end:
            answer: asyncio.Future[InferResponse] = loop.create_future()
            submit(REQUEST, answer.set_result)
            await answer
            done += 1

    await asyncio.gather(*(call() for _ in range(callers)))
    return done


def measure(
    plane: LoopThread, submit: Submit, executions: Callable[[], int], callers: int, seconds: float
) -> Result:
    """Measure one round of one side."""
    before, started = executions(), time.monotonic()
    done = plane.call(load(submit, callers, seconds))
    return Result(done / (time.monotonic() - started), done / (executions() - before))


def served(directory: Path, plane: LoopThread, delay_ms: int) -> ServedModel:
    """Load the model as a replica does."""
    (directory / "m" / "1").mkdir(parents=True, exist_ok=True)
    text = CONFIG.format(rows=MAX_BATCH, delay_ms=delay_ms)
    config = normalise(text_format.Parse(text, mc.ModelConfig()))
    spec = ModelSpec(
        name="m",
        version=1,
        directory=str(directory / "m"),
        config=config.SerializeToString(),
        application="m:1",
        fingerprint="",
        key=bytes(32),
        socket_directory="",
    )
    model = load_model(spec, plane, without_serve)
    plane.call(model.open())
    return model


def compare(delay_ms: int, callers: int, seconds: float, rounds: int) -> None:
    """Print both sides and their ratio."""
    plane = LoopThread("benchmark")
    with tempfile.TemporaryDirectory() as directory:
        model = served(Path(directory), plane, delay_ms)
        ideal = Ideal(plane.loop, delay_ms / 1000)
        ours: list[Result] = []
        best: list[Result] = []
        for _ in range(rounds):
            count = model.statistics
            ours.append(
                measure(plane, model.submit, lambda s=count: s.execution_count, callers, seconds)  # type: ignore[misc]
            )
            best.append(measure(plane, ideal.submit, lambda: ideal.executions, callers, seconds))
        model.close(timeout=5)
    plane.stop()
    for name, results in (("nereid", ours), ("ideal", best)):
        rate = statistics.median(result.per_second for result in results)
        batch = statistics.median(result.mean_batch for result in results)
        print(f"{delay_ms:3} ms  {name:7} {rate:8.0f} infer/s  mean batch {batch:5.1f}")
    ratios = [a.per_second / b.per_second for a, b in zip(ours, best, strict=True)]
    print(f"{delay_ms:3} ms  ratio   {statistics.median(ratios):8.3f} [{min(ratios):.3f}, {max(ratios):.3f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for delay_ms in (5, 20):
        compare(delay_ms, arguments.callers, arguments.seconds, arguments.rounds)


if __name__ == "__main__":
    main()
