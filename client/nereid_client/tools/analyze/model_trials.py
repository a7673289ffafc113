"""What configurations of one model are measured to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from nereid_client.tools.analyze.loads import Loads
from nereid_client.tools.analyze.queue_model import Costs
from nereid_client.tools.analyze.space import Axes, Candidate
from nereid_client.tools.analyze.trials import Trials
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.bench import Bench, Progress
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.generator.worker import Workers
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.result import Result

_CURVE_S: Final = 0.4
_HARMLESS: Final = 0.02
"""Failures of the curve that another process may cause."""


class ModelTrials(Trials[Candidate]):
    """Measures configurations of the model of `options`, also what single executions take."""

    def __init__(self, loads: Loads, options: Options, rules: Sequence[slo.Rule], progress: Progress) -> None:
        super().__init__(rules, progress)
        self._loads, self._options = loads, options

    def apply(self, candidate: Candidate) -> None:
        """As `Trials.apply`."""
        self._loads.apply(candidate)

    def restore(self) -> None:
        """As `Trials.restore`."""
        self._loads.restore()

    def costs(self, axes: Axes) -> Costs:
        """Measure executions: their time by rows and threads, and how instances slow each other down.

        Raises:
            PerfError: the model answers no request.
        """
        with Workers(self._options.processes) as workers:
            return self._costs(axes, workers)

    def _costs(self, axes: Axes, workers: Workers) -> Costs:
        seconds: dict[int, dict[int, float]] = {}
        outside: list[float] = []
        for threads in axes.threads:
            self.apply(Candidate(max(axes.batches), 0, 1, threads))
            own = seconds.setdefault(threads, {})
            sizes, between = _sizes(axes.batches)
            while sizes and (rows := sizes.pop(0)):
                result = self._alone(rows, 1, workers)
                if (
                    result.failed > _HARMLESS * result.requests or not result.rate
                ):  # more than the model takes
                    sizes, between = [size for size in between if max(own, default=0) < size < rows], []
                    continue
                own[rows] = execution_s(result)
                outside.append(result.service.mean / 1e3 - own[rows])
            if not own:
                raise PerfError(f"the model answers no request: {', '.join(result.errors)}")
        return Costs(seconds, self._slowdown(axes, seconds, workers), max(min(outside), 0.0))

    def _slowdown(
        self, axes: Axes, seconds: Mapping[int, Mapping[int, float]], workers: Workers
    ) -> dict[int, float]:
        """Measure it with the most rows: at the highest rates batches are full."""
        threads = axes.threads[0]
        rows = max(seconds[threads])
        found = {1: 1.0}
        for instances in axes.instances:
            if instances > 1:
                self.apply(Candidate(max(axes.batches), 0, instances, threads))
                took = execution_s(self._alone(rows, instances, workers))
                found[instances] = max(took / seconds[threads][rows], 1.0)
        return found

    def _alone(self, rows: int, concurrency: int, workers: Workers) -> Result:
        """Measure requests of so many rows in a closed loop."""
        options = replace(self._options, batch=rows, cut=True)
        with Bench(options, self.progress, workers=workers) as bench:
            return bench.measure(Level("concurrency", concurrency), 1, _CURVE_S)


def _sizes(batches: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the rows whose executions are measured, one, the most, every second number, and the others."""
    known = sorted({max(batch, 1) for batch in batches} | {1})
    sizes = sorted({1, *known[::-2]})
    return sizes, [rows for rows in known if rows not in sizes]


def execution_s(result: Result) -> float:
    """Return the seconds of an execution, as the server has counted them."""
    share = result.server
    if share is None or not share.requests:
        raise PerfError("the server has no statistics of the model")
    return (share.compute_input_us + share.compute_infer_us + share.compute_output_us) / 1e6
