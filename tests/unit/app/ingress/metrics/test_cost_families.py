"""Costs in /metrics: by version, and by token, never by both."""

from app.core.cost.reports import CostAnswer, VersionCost, VersionSaving
from app.core.observability.metrics_config import MetricsConfig
from app.ingress.metrics.cost_families import cost_families


def test_families() -> None:
    answer = CostAnswer((VersionCost("/models::m", 2, 1.5, 0.5),), {"a": 1.0}, {"raylet": 0.25}, 3.25)
    samples = [
        (sample.name, sample.labels, sample.value)
        for family in cost_families(answer, MetricsConfig())
        for sample in family.samples
    ]
    version = {"model": "m", "namespace": "/models", "version": "2"}
    assert samples == [
        ("nereid_cost_cpu_seconds", version, 1.5),
        ("nereid_cost_idle_cpu_seconds", version, 0.5),
        ("nereid_cost_token_cpu_seconds", {"token": "a"}, 1.0),
        ("nereid_cost_overhead_cpu_seconds", {"process": "raylet"}, 0.25),
        ("nereid_cost_measured_cpu_seconds", {}, 3.25),
    ]
    assert list(cost_families(None, MetricsConfig())) == []


def test_what_a_version_saves_has_its_bounds() -> None:
    answer = CostAnswer(savings=(VersionSaving("m", 2, 0.48, 0.5, 0.52),))
    samples = [
        (sample.labels["bound"], sample.value)
        for family in cost_families(answer, MetricsConfig())
        for sample in family.samples
        if sample.name == "nereid_rollout_saving_ratio"
    ]
    assert samples == [("low", 0.48), ("value", 0.5), ("high", 0.52)]
