"""What a replica reports of its executions while a rollout compares versions."""

from app.core.observability.statistics import Statistics
from app.core.rollout.outcomes import COMPUTE, log_bucket
from deployments.replica import compute
from deployments.replica.compute import ComputeMeter
from tests.unit.deployments.served_model_bench import Bench, request


def test_powers_of_two_are_bounds_of_buckets() -> None:
    assert [log_bucket(rows) for rows in (0, 1, 2, 3, 4, 7, 8, 9)] == [0, 0, 4, 7, 8, 12, 12, 13]


async def test_executions_are_kept_while_somebody_asks_for_them() -> None:
    statistics = Statistics()
    meter = ComputeMeter(statistics)
    statistics.record_execution(4, 1, 0, 1_000_000, 0)
    assert await meter.take() == {}, "nobody had asked before"
    for rows, us in ((4, 900), (4, 1000), (4, 5000), (1, 300)):
        statistics.record_execution(rows, 1, us * 100, us * 800, us * 100)
    assert await meter.take() == {
        log_bucket(4): {log_bucket(1000): 2, log_bucket(5000): 1},
        log_bucket(1): {log_bucket(300): 1},
    }
    assert await meter.take() == {}
    assert meter._end is not None
    meter._end.cancel()
    meter._stop()
    statistics.record_execution(4, 1, 0, 1_000_000, 0)
    assert statistics.executions is None


async def test_the_executions_that_are_kept_are_limited() -> None:
    statistics = Statistics()
    meter = ComputeMeter(statistics)
    await meter.take()
    for _ in range(compute._MOST + 5):
        statistics.record_execution(1, 1, 0, 1_000_000, 0)
    ((times),) = (await meter.take()).values()
    assert sum(times.values()) == compute._MOST


def test_a_replica_answers_for_its_executions(bench: Bench) -> None:
    bench.load()
    assert bench.control(COMPUTE) == {}
    bench.infer(request("a"))
    ((rows, times),) = bench.control(COMPUTE).items()
    assert rows == log_bucket(1) and sum(times.values()) == 1
