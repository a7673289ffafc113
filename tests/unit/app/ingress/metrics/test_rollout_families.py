"""The families of a rollout, as Prometheus reads them."""

from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.core.observability.metrics_config import MetricsConfig
from app.core.rollout.outcomes import MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.split import WHOLE, Split
from app.ingress.metrics.exposition import exposition
from app.ingress.metrics.family import read_families
from app.ingress.metrics.page import _sides
from app.ingress.metrics.rollout_families import ROLLOUTS

OUTCOMES = Outcomes(
    VersionOutcomes(ok=75, refused=2, cancelled=3, latencies={40: 75}),
    VersionOutcomes(ok=20, failed=5, rescued=4, latencies={28: 8, 29: 4, 104: 2, 105: 6}),
    MirrorOutcomes(compared=9, differing=3, disagreeing=1, failed=2, skipped=7),
)


class Counted:
    """The traffic of an ingress."""

    def __init__(self, *splits: Split) -> None:
        self.splits = splits

    def counted(self) -> Iterable[tuple[Split, Outcomes]]:
        return [(split, OUTCOMES) for split in self.splits]


def read(*splits: Split) -> dict[str, dict[str, float]]:
    """Values by name of sample, and by the labels that tell its samples apart."""
    families = read_families(ROLLOUTS, _sides(Counted(*splits)), MetricsConfig())  # type: ignore[arg-type]
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(exposition(families)):
        for sample in family.samples:
            assert sample.labels.pop("model") == "m"
            version = sample.labels.pop("version")
            assert version == {"stable": "1", "candidate": "2"}[sample.labels["role"]]
            name = sample.name.removesuffix("_total")  # which the reader adds
            found.setdefault(name, {})[" ".join(sample.labels.values())] = sample.value
    return found


@pytest.fixture
def found() -> dict[str, dict[str, float]]:
    return read(Split("r", "m", 1, 2, weight=WHOLE // 4, state="step"))


def test_weights_state_and_outcomes_are_of_each_version(found: dict[str, dict[str, float]]) -> None:
    assert found["nereid_rollout_weight"] == {"stable": 0.75, "candidate": 0.25}
    assert found["nereid_rollout_state"] == {"stable step": 1, "candidate step": 1}
    assert found["nereid_rollout_requests"] == {
        "ok stable": 75,
        "failed stable": 0,
        "refused stable": 2,
        "cancelled stable": 3,
        "ok candidate": 20,
        "failed candidate": 5,
        "refused candidate": 0,
        "cancelled candidate": 0,
    }
    assert found["nereid_rollout_rescued"] == {"stable": 0, "candidate": 4}
    assert found["nereid_rollout_mirrored"] == {
        "compared candidate": 9,
        "differing candidate": 3,
        "disagreeing candidate": 1,
        "near_ties candidate": 0,
        "failed candidate": 2,
        "skipped candidate": 7,
    }


def test_latencies_are_a_histogram_with_the_bounds_of_the_buckets(found: dict[str, dict[str, float]]) -> None:
    buckets = found["nereid_rollout_latency_seconds_bucket"]
    candidate = {name.split()[1]: count for name, count in buckets.items() if name.startswith("candidate")}
    assert list(candidate)[:3] == ["0.000128", "0.000256", "0.000512"]
    assert (candidate["0.000128"], candidate["0.000256"]) == (8, 12)
    assert (candidate["33.554432"], candidate["67.108864"], candidate["+Inf"]) == (12, 14, 20)
    assert found["nereid_rollout_latency_seconds_count"] == {"stable": 75, "candidate": 20}
    assert found["nereid_rollout_latency_seconds_sum"]["stable"] == pytest.approx(75 * 0.00094, rel=0.01)


def test_without_a_rollout_there_are_no_families() -> None:
    assert read() == {}
