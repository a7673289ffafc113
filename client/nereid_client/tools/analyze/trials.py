"""Loads of candidates on the running server, and what each was measured to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from nereid_client import Server, ServerError
from nereid_client.tools.analyze.queue_model import Costs
from nereid_client.tools.analyze.space import Axes, Candidate, configured
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.asking import Asking
from nereid_client.tools.perf.bench import Bench, Progress
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.generator.worker import Workers
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.result import Result
from nereid_client.tools.perf.search import Search

_CURVE_S: Final = 0.4
_FACTOR: Final = 1.12
_STEP: Final = 1.05
_CHANCES: Final = 2
_FAR_BELOW: Final = 0.2
"""Of what a candidate answers in a closed loop; less may be the machine's doing."""
_LESS: Final = 0.97
"""At most this share of a rate that it did not keep is what a candidate does."""
_TURN_S: Final = 0.5
_OPEN_SHARE: Final = 0.9
"""Of what a candidate answers in a closed loop: where the search of its rate in open loops begins."""
_IN_FLIGHT: Final = (32, 256)
"""Requests of a closed loop if nothing limits the latency, and at most."""
_LOAD_S: Final = 300.0
_HARMLESS: Final = 0.02
"""Failures of the curve that another process may cause."""


@dataclass
class Measured:
    """What a candidate does: the highest rate that keeps the objective, and loads up to it that did.

    Attributes:
        below: the rate that it did not keep, and had to; then `rate` is what it answered of that.
        why: no rate was found, or what is doubtful about it; "" if nothing is.
    """

    rate: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    mean_batch: float = 0.0
    points: list[tuple[float, float]] = field(default_factory=list)
    below: float = 0.0
    why: str = ""


class Turn(NamedTuple):
    """What a candidate answers a second in a short closed loop, and what is doubtful about it."""

    rate: float
    doubt: str


class Trials:
    """A model whose configuration is changed by loads; `restore` loads that which it had.

    Attributes:
        config: its configuration before.
        threads: the parameter that says how many threads an instance computes with; "" for none.
    """

    def __init__(
        self,
        server: Server,
        options: Options,
        rules: Sequence[slo.Rule],
        progress: Progress,
        thread_parameters: Mapping[str, str],
    ) -> None:
        self._server, self._options, self._rules, self.progress = server, options, rules, progress
        self._applied: Candidate | None = None
        self.config = server.model(options.model).described()[1]
        self.threads = thread_parameters.get(self.config.get("backend", ""), "")

    def apply(self, candidate: Candidate) -> None:
        """Load the model with a candidate's configuration; nothing is written.

        Raises:
            PerfError: the server does not load it.
        """
        if candidate == self._applied:
            return
        self.progress.tick(f"load {candidate}", 0, 1)
        self._load(configured(self.config, candidate, self.threads))
        self._applied = candidate

    def restore(self) -> None:
        """Load the model as it was: by its files, or, if that is another one, by its configuration."""
        if self._applied is None:
            return
        self._load(None)
        if self._server.model(self._options.model).described()[1] != self.config:
            self._load(self.config)
        self._applied = None

    def _load(self, config: Mapping[str, Any] | None) -> None:
        model = self._options.model
        try:
            self._server.load(model, config, timeout=_LOAD_S)
            self._server.wait_ready(model, timeout=_LOAD_S)
        except ServerError as error:
            hint = (
                ": run it with --model-control-mode=explicit" if "explicit" in error.message.lower() else ""
            )
            raise PerfError(f"the server does not load '{model}': {error.message}{hint}") from None

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
                own[rows] = _execution_s(result)
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
                took = _execution_s(self._alone(rows, instances, workers))
                found[instances] = max(took / seconds[threads][rows], 1.0)
        return found

    def _alone(self, rows: int, concurrency: int, workers: Workers) -> Result:
        """Measure requests of so many rows in a closed loop."""
        options = replace(self._options, batch=rows)
        with Bench(options, self.progress, workers=workers) as bench:
            return bench.measure(Level("concurrency", concurrency), 1, _CURVE_S)

    def rate(
        self,
        bench: Bench,
        candidate: Candidate,
        expected: float,
        left: Callable[[], float],
        floor: float = 0.0,
    ) -> Measured:
        """Load a candidate and search the highest rate at which it keeps the objective.

        Args:
            expected: what it answers in a closed loop.
            left: returns the seconds that are left for it.
            floor: if it does not keep it at this rate, nothing more is measured; 0 for none.
        """
        self.apply(candidate)
        results: list[Result] = []
        asking = Asking(bench, self._rules, expected, results)
        if floor and not any(asking.ask(floor, long=False).kept for _ in range(_CHANCES)):
            answered = max(result.rate for result in results)
            return Measured(min(answered, _LESS * floor), below=floor)
        # What had to beat another one is mostly little better: small steps need few probes.
        first, factor = (floor, _STEP) if floor else (max(_OPEN_SHARE * expected, 1.0), _FACTOR)
        found = Search(asking.ask, left, asking.seconds, expected).run(first, factor)
        if not found.rate:
            return Measured(why=found.why)
        last = results[-1]
        return Measured(
            found.rate,
            last.latency["p50"],
            last.latency["p99"],
            last.server.mean_batch if last.server else 0.0,
            self._points(results, last, found.rate),
            why=last.void or ("" if found.rate > _FAR_BELOW * expected else "far below its closed loop"),
        )

    def _points(self, results: Sequence[Result], last: Result, rate: float) -> list[tuple[float, float]]:
        """Return the loads that kept the objective, up to the rate that is told: above it, it was luck."""
        below = (
            (result.level.value, result.latency["p99"])
            for result in results
            if result.level.value < rate and not slo.broken(self._rules, result)
        )
        return [*below, (rate, last.latency["p99"])]

    def turn(self, bench: Bench, candidate: Candidate, in_flight: int) -> Turn:
        """Load a candidate, and measure it with so many requests in flight, for a short time."""
        self.apply(candidate)
        for _ in range(_CHANCES):
            result = bench.measure(Level("concurrency", in_flight), 1, _TURN_S)
            if not result.disturbed:
                break
        return Turn(result.rate, _doubt(result) if result.disturbed or result.failed else "")

    def in_flight(self, rate: float) -> int:
        """Return how many requests are in flight at a rate if they take half of what the objective allows."""
        limits_ms = [rule.limit for rule in self._rules if rule.name != "errors"]
        usual, most = _IN_FLIGHT
        return min(max(round(rate * min(limits_ms) / 2e3), 1), most) if limits_ms else usual


def _doubt(result: Result) -> str:
    """Return what may have made a figure that of something else."""
    return result.void or ", ".join(result.reasons)


def _sizes(batches: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the rows whose executions are measured, one, the most, every second number, and the others."""
    known = sorted({max(batch, 1) for batch in batches} | {1})
    sizes = sorted({1, *known[::-2]})
    return sizes, [rows for rows in known if rows not in sizes]


def _execution_s(result: Result) -> float:
    """Return the seconds of an execution, as the server has counted them."""
    share = result.server
    if share is None or not share.requests:
        raise PerfError("the server has no statistics of the model")
    return (share.compute_input_us + share.compute_infer_us + share.compute_output_us) / 1e6
