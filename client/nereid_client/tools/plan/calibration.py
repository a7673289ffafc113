"""Measures the replicas that serve a model now, and by how much the simulation is off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from nereid_client.tools.analyze.model_trials import execution_s
from nereid_client.tools.analyze.space import present
from nereid_client.tools.perf.bench import Bench, Progress
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.generator.worker import Workers
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.result import Result
from nereid_client.tools.plan.arrivals import Traffic, by_chance
from nereid_client.tools.plan.simulation import Replica, latencies

_ALONE_S: Final = 1.0
_LOOP_S: Final = 2.0
_OPEN_S: Final = 15.0
_GROWS: Final = 1.04
"""A closed loop that answers less than so many times as much as one of half the requests is full."""
_MOST: Final = 1024
_SHARE: Final = 0.8
"""Of the saturation: the open loop by which latencies are compared."""
_REQUESTS: Final = 20_000
_CHANCES: Final = 3
_AGAIN: Final = 1.2
"""A p99 that is so many times the simulated one is measured again: what disturbs makes it longer only."""
_LONGER: Final = (0.8, 1.2)
"""So many times as long are executions taken to be in an open loop: beyond, its load would not fit."""
_STEPS: Final = 8
_FAR_OFF: Final = 1.05
"""A p99 that is so many times what such executions explain has another cause than the load."""


class Calibration(NamedTuple):
    """What was measured, beside what the simulation said.

    Attributes:
        replica: as measured; its executions take `slower * longer` times as long as they were counted.
        saturation: requests a second that the present replicas answer at most.
        slower: the simulated saturation by the measured one.
        p99_ms: of the open loop.
        simulated_ms: what the simulation said before.
        longer: executions of the open loop by those of the closed one, so that the simulation has its p99.
        later: what is left between the two; latencies of a plan are multiplied by it.
        doubts: what may have disturbed the figures.
    """

    replica: Replica
    saturation: float
    slower: float
    p99_ms: float
    simulated_ms: float
    longer: float
    later: float
    doubts: tuple[str, ...] = ()


def calibrate(
    config: Mapping[str, Any], options: Options, replicas: int, most_rows: int, progress: Progress
) -> Calibration:
    """Measure a model as it is configured: single requests, a closed loop, an open one.

    Args:
        config: of the model.
        options: what is asked; requests have `options.batch` rows but for single ones.
        replicas: that serve it now.
        most_rows: of a request of the traffic.

    Raises:
        PerfError: the model answers no request.
    """
    with Workers(options.processes) as workers:
        counted = _replica(config, options, most_rows, progress, workers)
        with Bench(options, progress, workers=workers) as bench:
            saturation, full = _saturation(bench, counted, replicas)
            slower = counted.capacity(options.batch) * replicas / saturation
            replica = counted.scaled(slower)
            arrivals = by_chance(_SHARE * saturation, _REQUESTS, options.batch)
            simulated_ms = _p99_ms(replica, replicas, arrivals)
            opened = _opened(bench, arrivals.rate, saturation, simulated_ms)
    doubts = [each for result in (full, opened) for each in (result.void, *result.reasons) if each]
    p99_ms = opened.latency["p99"]
    longer = fitted(replica, replicas, arrivals, p99_ms)
    replica = replica.scaled(longer)
    later = p99_ms / _p99_ms(replica, replicas, arrivals)
    if 1 / _FAR_OFF < later < _FAR_OFF:
        later = 1.0
    return Calibration(
        replica, saturation, slower, p99_ms, simulated_ms, longer, later, tuple(dict.fromkeys(doubts))
    )


def fitted(replica: Replica, replicas: int, arrivals: Traffic, p99_ms: float) -> float:
    """Return how many times as long executions must take for the p99 that was measured.

    A factor for the p99 itself would carry over what the load of the measurement does to it: queues near the
    saturation grow much faster than at half of it.
    """
    low, high = _LONGER
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _p99_ms(replica.scaled(middle), replicas, arrivals) < p99_ms:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _p99_ms(replica: Replica, replicas: int, arrivals: Traffic) -> float:
    found = latencies(replica, replicas, arrivals.times, arrivals.rows)
    return 1e3 * float(np.percentile(found, 99))


def _opened(bench: Bench, rate: float, saturation: float, simulated_ms: float) -> Result:
    """Measure an open loop; again if its p99 is above the simulated one; return the best."""
    found: list[Result] = []
    while len(found) < _CHANCES:
        found.append(bench.measure(Level("rate", rate), 1, _OPEN_S, saturation))
        if found[-1].latency["p99"] < _AGAIN * simulated_ms:
            break
    return min(found, key=lambda result: result.latency["p99"])


def _replica(
    config: Mapping[str, Any], options: Options, most_rows: int, progress: Progress, workers: Workers
) -> Replica:
    now = present(config, "")
    batched = config.get("dynamic_batching") is not None
    largest = int(config.get("max_batch_size", 0))
    sizes = sorted({1, largest} if batched else {1, min(most_rows, max(largest, 1))})
    alone = {rows: _alone(replace(options, batch=rows), progress, workers) for rows in sizes if rows}
    times = [execution_s(result) for result in alone.values()]
    seconds = np.interp(np.arange(max(sizes) + 1), sizes, times)
    outside = min(_outside_s(result) for result in alone.values())
    batch, delay_s = (max(now.batch, 1), now.delay_us / 1e6) if batched else (0, 0.0)
    return Replica([float(each) for each in seconds], batch, delay_s, now.instances, outside)


def _alone(options: Options, progress: Progress, workers: Workers) -> Result:
    with Bench(options, progress, workers=workers) as bench:
        result = bench.measure(Level("concurrency", 1), 1, _ALONE_S)
    if not result.rate:
        raise PerfError(f"the model answers no request: {', '.join(result.errors)}")
    return result


def _outside_s(result: Result) -> float:
    queue_us = result.server.queue_us if result.server is not None else 0.0
    return max(result.service.mean / 1e3 - execution_s(result) - queue_us / 1e6, 0.0)


def _saturation(bench: Bench, replica: Replica, replicas: int) -> tuple[float, Result]:
    """Return what the replicas answer at most: with twice as many requests in flight they answer no more."""
    in_flight = 2 * max(replica.batch, 1) * replica.instances * replicas
    result = bench.measure(Level("concurrency", in_flight), 1, _LOOP_S)
    while in_flight < _MOST:
        in_flight *= 2
        more = bench.measure(Level("concurrency", in_flight), 1, _LOOP_S)
        if more.rate < _GROWS * result.rate:
            return max(more.rate, result.rate), result
        result = more
    return result.rate, result
