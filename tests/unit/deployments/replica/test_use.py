"""What a replica reports of its use: memory of its processes, and how long it was idle."""

import asyncio
import subprocess
import sys
import threading

import psutil
import pytest

from app.core.observability.statistics import ReplicaReport
from app.core.residency import USE, ReplicaUse
from app.core.system.processes import own_processes
from deployments.replica import use
from deployments.replica.control import ReplicaHandler
from deployments.replica.use import memory_bytes
from tests.unit.deployments.served_model_bench import Bench, request
from tests.waiting import let_run


def test_use_tells_how_long_the_replica_was_idle_and_what_it_has(bench: Bench) -> None:
    bench.load()
    fresh: ReplicaUse = bench.control(USE)
    assert fresh.nbytes > 10 << 20 and fresh.sequences == 0 and 0 < fresh.idle_s < 60
    held = bench.hold()
    assert bench.control(USE).idle_s == 0
    bench.backend.gate.set()
    held.result(60)
    assert 0 < bench.control(USE).idle_s < 60


def test_memory_is_measured_again_after_executions_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure() -> int:
        measured.append(1)
        return 1000 + len(measured)

    monkeypatch.setattr(use, "memory_bytes", measure)
    monkeypatch.setattr(use, "_MEASURE_S", 0)
    bench.load()
    assert bench.model is not None
    handler = ReplicaHandler(bench.model)

    def read() -> int:
        found: ReplicaUse = bench.plane.call(handler.control(USE, None), 30)
        return found.nbytes

    assert [read(), read()] == [1001, 1001]
    bench.infer(request("a"))
    assert [read(), read()] == [1002, 1002]


def test_who_asks_while_memory_is_measured_waits_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def measure() -> int:
        begun.set()
        assert may_end.wait(30)
        return 1000

    monkeypatch.setattr(use, "memory_bytes", measure)
    bench.load()
    assert bench.model is not None
    handler = ReplicaHandler(bench.model)

    async def ask_twice() -> list[int]:
        asked = [asyncio.ensure_future(handler.control(USE, None)) for _ in range(2)]
        assert await asyncio.to_thread(begun.wait, 30)
        await let_run()
        may_end.set()
        return [found.nbytes for found in await asyncio.gather(*asked)]

    assert bench.plane.call(ask_twice(), 30) == [1000, 1000]


def test_memory_covers_the_processes_below() -> None:
    before = memory_bytes()
    code = "data = bytearray(64 << 20); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        assert memory_bytes() - before > 60 << 20
        assert memory_bytes() <= 1.5 * (
            psutil.Process().memory_info().rss + psutil.Process(child.pid).memory_info().rss
        )
    finally:
        child.communicate()


def test_processor_time_is_reported_where_the_replica_has_processes_of_its_own(bench: Bench) -> None:
    bench.load()
    assert bench.model is not None
    shared, own = ReplicaHandler(bench.model), ReplicaHandler(bench.model, processes=own_processes)

    def reported(handler: ReplicaHandler) -> float:
        report: ReplicaReport = bench.plane.call(handler.control("statistics", None), 30)
        return report.processor_s

    assert reported(shared) == 0
    assert 0 < reported(own) <= reported(own)
