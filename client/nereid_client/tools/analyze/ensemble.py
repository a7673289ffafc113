"""Configurations of the steps of an ensemble, searched together: what one step gains, the ensemble has to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from nereid_client.tools.analyze.choice import BETTER, compete, ranked
from nereid_client.tools.analyze.loads import Loads
from nereid_client.tools.analyze.space import Axes, Candidate
from nereid_client.tools.analyze.trials import Trials
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.bench import Progress
from nereid_client.tools.perf.result import Result
from nereid_client.tools.perf.server_share import Share

_LIMITS: Final = 0.7
"""Share of the time that the instances of a step compute, from which it is the step that limits."""


class Combination(NamedTuple):
    """The configurations of the steps of an ensemble that are searched, by the name of the step's model."""

    steps: tuple[tuple[str, Candidate], ...]

    def __str__(self) -> str:
        return "; ".join(f"{name}: {candidate}" for name, candidate in self.steps)

    def of(self, step: str) -> Candidate:
        """Return the configuration of a step."""
        return dict(self.steps)[step]

    def with_step(self, step: str, candidate: Candidate) -> Combination:
        """Return the same with another configuration of one step."""
        return Combination(tuple((name, candidate if name == step else own) for name, own in self.steps))


class EnsembleTrials(Trials[Combination]):
    """Measures an ensemble with configurations of its steps.

    Args:
        steps: those that are searched, by the names of their models.
    """

    def __init__(self, steps: Mapping[str, Loads], rules: Sequence[slo.Rule], progress: Progress) -> None:
        super().__init__(rules, progress)
        self.steps = steps

    def apply(self, candidate: Combination) -> None:
        """As `Trials.apply`."""
        for name, configuration in candidate.steps:
            self.steps[name].apply(configuration)

    def restore(self) -> None:
        """As `Trials.restore`."""
        for loads in self.steps.values():
            loads.restore()


def neighbours(now: Candidate, axes: Axes, most: int) -> list[Candidate]:
    """Return the candidates that differ from one in a single field: instances first, then batches, delays."""
    found = [now._replace(instances=each) for each in axes.instances]
    found += [now._replace(batch=each) for each in sorted(axes.batches, reverse=True)]
    found += [now._replace(delay_us=each) for each in axes.delays_us if now.batch > 1]
    found += [now._replace(threads=each) for each in axes.threads if each]
    return [each for each in dict.fromkeys(found) if each != now][:most]


def improve(
    now: Combination,
    choices: Callable[[str, Candidate], Sequence[Candidate]],
    busiest: Callable[[Combination], Sequence[str]],
    measure: Callable[[Combination], float],
    rounds: int,
    goes_on: Callable[[], bool],
) -> tuple[Combination, dict[Combination, float]]:
    """Change the step that limits, again and again, as long as the ensemble answers more.

    Args:
        now: what it begins with.
        choices: returns other configurations of a step.
        busiest: returns the steps, the one that computes the largest share of its time first.
        measure: returns what the ensemble answers a second in a short closed loop.
        rounds: of each comparison.
        goes_on: returns whether there is time for another step.

    Returns:
        The best combination, and what each that was tried did, the median of its rounds.
    """
    best, known, done = now, dict[Combination, float](), set[str]()
    while goes_on():
        step = next((each for each in busiest(best) if each not in done), None)
        if step is None:
            break
        others = [best.with_step(step, each) for each in choices(step, best.of(step))]
        rates = compete(others, best, rounds, measure)
        known |= {combination: median(found) for combination, found in rates.items()}
        first = ranked(rates, rates)[0]
        if median(rates[first]) * BETTER > median(rates[best]):
            best, done = first, {step}  # another step may limit now
        else:
            done.add(step)
    return best, known


def computing(result: Result, instances: Mapping[str, int]) -> dict[str, float]:
    """Return the share of a measurement that an instance of each step computed, the largest first.

    Args:
        result: of the ensemble, with the server's statistics.
        instances: of the steps, by model.
    """
    if result.server is None or not result.rate:
        return {}
    seconds = result.server.requests / result.rate  # the server has counted those before the measurement too
    found = {
        name: min(_computed_s(share) / seconds / max(instances[name], 1), 1.0)
        for name, share in result.server.steps.items()
        if name in instances and seconds
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _computed_s(share: Share) -> float:
    execution_us = share.compute_input_us + share.compute_infer_us + share.compute_output_us
    return share.executions * execution_us / 1e6


def limiting(shares: Mapping[str, float]) -> str:
    """Return a sentence that names the step that limits, by what `computing` returns; "" of nothing."""
    if not shares:
        return ""
    (first, share), *_ = shares.items()
    listed = ", ".join(f"'{name}' {each:.0%}" for name, each in shares.items())
    if share < _LIMITS:
        return (
            f"No step limits, something outside of them does: of the time their instances compute {listed}."
        )
    return f"'{first}' limits: of the time the instances of the steps compute {listed}."
