"""The figures of a rollout that people read: rates and quantiles of both versions, each with its interval."""

from typing import Final

import msgspec

from app.core.rollout.outcomes import MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.spec import RolloutSpec, TapeRules
from app.core.rollout.statistics import quantile_interval, wilson
from nereid_client.comparison.acceptance import Acceptance, accept
from nereid_client.comparison.rules import ComparisonRules

QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)


class Estimate(msgspec.Struct, frozen=True):
    """A value, and the interval in which it lies with 95 %."""

    value: float
    low: float
    high: float


class VersionFigures(msgspec.Struct, frozen=True):
    """Figures of the answers of one version.

    Attributes:
        requests: answered, or failed by the server.
        error_rate: the share of them that failed; None without requests.
        latency_ms: by quantile, as "0.95"; empty without answers.
    """

    requests: int
    error_rate: Estimate | None
    latency_ms: dict[str, Estimate]


class RolloutFigures(msgspec.Struct, frozen=True):
    """Both versions of a rollout; `agreement` is the share of mirrored answers within the rules."""

    stable: VersionFigures
    candidate: VersionFigures
    agreement: Estimate | None


def figures(outcomes: Outcomes) -> RolloutFigures:
    return RolloutFigures(
        _of_version(outcomes.stable), _of_version(outcomes.candidate), _agreed(outcomes.mirror)
    )


def _of_version(outcomes: VersionOutcomes) -> VersionFigures:
    quantiles = QUANTILES if outcomes.latencies else ()
    latencies = {f"{quantile:g}": _latency(outcomes.latencies, quantile) for quantile in quantiles}
    return VersionFigures(outcomes.judged, share(outcomes.failed, outcomes.judged), latencies)


def accepted(spec: RolloutSpec, mirror: MirrorOutcomes) -> Acceptance:
    """Say whether repeated requests show that the candidate is right.

    Failures are not; near ties say nothing. Where outputs are not judged, only failures count.
    """
    rules, tape = spec.judge.output, spec.tape or TapeRules()
    if rules is None:
        bad, total, allowed = mirror.failed, mirror.compared + mirror.failed, ComparisonRules().allowed
    else:
        bad, total, allowed = mirror.bad + mirror.failed, mirror.telling + mirror.failed, rules.allowed
    return accept(bad, total, allowed, tape.confidence)


def _latency(latencies: dict[int, int], quantile: float) -> Estimate:
    return Estimate(*(us / 1000 for us in quantile_interval(latencies, quantile)))


def _agreed(mirror: MirrorOutcomes) -> Estimate | None:
    return share(mirror.telling - mirror.bad, mirror.telling)


def share(count: int, total: int) -> Estimate | None:
    """Return a share with its interval; None of nothing."""
    return Estimate(count / total, *wilson(count, total)) if total else None
