"""The counters that a process keeps of the ensembles it ran."""

import msgspec
import pytest

from app.core.observability.metrics_config import MetricsConfig
from app.core.rollout.split import Split
from app.core.tensors import RolloutHint
from app.ensemble.runner import EnsembleRunner
from app.routing.table import RoutingTable
from tests.unit.ensembles import CHAIN, DECOUPLED, Models, ensemble, model, step, tensor

ONE_DECOUPLED = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), more=DECOUPLED)


async def test_distributions_are_kept_where_enabled() -> None:
    """Summaries of every request, and of a decoupled ensemble how long the first response took."""
    models = Models(e=ONE_DECOUPLED, a=model(more=DECOUPLED))
    report = models.ensembles.report(models.resolve("e"))
    assert (report.summaries, report.first_response) == ({}, None)
    models.ensembles = EnsembleRunner(models, reported=MetricsConfig(summaries=True, histograms=True))
    models.infer(tensor())
    asked = models.take("a")
    for fill in (1, 2):
        asked.answer(tensor("y", fill=fill), final=False)
    asked.answer()
    report = models.ensembles.report(models.resolve("e"))
    assert {name: summary.count for name, summary in report.summaries.items()} == dict.fromkeys(
        ("request", "queue", "compute_input", "compute_infer", "compute_output"), 1
    )
    assert report.first_response is not None
    assert report.first_response.bounds == (100, 500, 2000, 5000)
    assert sum(report.first_response.counts) == 1
    assert report.failures == {}
    assert models.ensembles.reports() == [("e", 1, report)]


def in_rollout(of: Models, name: str) -> None:
    """Put a model in a rollout of version 2."""
    second = msgspec.structs.replace(of.table.resolve(name), version=2)
    entries = (*of.table.entries, second)
    of.table = RoutingTable(2, True, entries, splits=(Split("r", name, stable=1, candidate=2),))


@pytest.mark.parametrize("request_id", ["", "x"])
async def test_calls_of_one_request_have_one_key_in_a_rollout(request_id: str) -> None:
    inner = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"))
    outer = ensemble(
        step({"x": "IN"}, {"y": "L"}, "a"),
        step({"IN": "IN"}, {"OUT": "R"}, "inner"),
        step({"l": "L", "r": "R"}, {"y": "OUT"}, "c"),
    )
    models = Models(e=outer, inner=inner, a=model(), c=model("l r"))
    in_rollout(models, "a")
    for _ in range(2):
        models.infer(tensor(), id=request_id)
    keys = [asked.request.rollout.key for asked in models.asked if asked.request.rollout]
    assert keys[:2] == keys[:1] * 2 and keys[2:] == keys[2:3] * 2 and len(keys) == 4
    assert (keys[0] == keys[2]) is bool(request_id), "two requests are not one"


async def test_a_header_rule_is_for_the_ensemble_alone() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor(), rollout=RolloutHint("candidate", "key"))
    assert models.take("a").request.rollout is None
