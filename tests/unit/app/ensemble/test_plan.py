"""Which ensembles follow a plan, and for how long."""

import gc
import weakref
from typing import Any

import pytest

from app.core.tensors import RequestedOutput
from app.ensemble.execution import EnsembleExecution
from app.ensemble.planned import PlannedExecution
from app.routing.table import RoutingTable
from tests.unit.ensembles import BRANCHES, CHAIN, DECOUPLED, Models, ensemble, entry, model, step, tensor


@pytest.fixture(autouse=True)
def way() -> str:
    """The only one here."""
    return "planned"


@pytest.mark.parametrize(
    ("planned", "config", "more"),
    [
        (True, CHAIN, {}),
        (True, CHAIN, {"chain": ("caller",)}),
        (True, BRANCHES, {}),
        (True, BRANCHES, {"outputs": (RequestedOutput("OUT"),)}),
        (False, CHAIN, {"trace": "-"}),
        (False, ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), limit=1), {}),
        (False, ensemble(step({"x": "IN"}, {"y": "OUT"}, "stream"), more=DECOUPLED), {}),
        (False, ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "inner")), {}),
        (False, ensemble(step({"x": "IN"}, {"y": "OUT"}, "unknown")), {}),
    ],
)
async def test_requests_that_need_no_more_follow_a_plan(planned: bool, config: str, more: Any) -> None:
    parts = {name: model() for name in ("a", "b")} | {"c": model("l r"), "stream": model(more=DECOUPLED)}
    models = Models(e=config, inner=CHAIN, **parts)
    call = models.infer(tensor(), **more)
    assert isinstance(call, PlannedExecution if planned else EnsembleExecution)


async def test_plans_are_those_of_the_current_table() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor())
    models.infer(tensor())
    assert models.resolved == ["e", "a", "b", "e"]
    models.table = RoutingTable(2, True, (*models.table.entries, entry("a", model(), version=2)))
    models.infer(tensor())
    assert models.resolved[4:] == ["e", "a", "b"]
    assert models.asked[2].request.model_name == "a"


async def test_the_plans_of_an_ensemble_are_bounded() -> None:
    names = [f"OUT{number}" for number in range(8)]
    steps = [step({"x": "IN"}, {"y": name}, "a") for name in names]
    models = Models(e=ensemble(*steps, outputs=" ".join(names)), a=model())
    for chosen in range(1, 256):
        wanted = tuple(RequestedOutput(name) for bit, name in enumerate(names) if chosen >> bit & 1)
        models.infer(tensor(), outputs=wanted)
        for asked in models.asked:
            asked.answer(tensor("y"))
        models.asked.clear()
        assert [output.name for output in models.responses[-1].outputs] == [each.name for each in wanted]
    (compiled,) = models.ensembles._ensembles.values()
    assert len(compiled._plans) <= 65


async def test_an_ensemble_without_requests_keeps_no_older_table() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor())
    models.asked.clear()
    old = [weakref.ref(found.target) for found in models.table.entries if not found.ensemble]
    (ensemble,) = [found for found in models.table.entries if found.ensemble]
    models.table = RoutingTable(2, True, (ensemble, entry("a", model()), entry("b", model())))
    models.ensembles.retain(models.table.ready)
    gc.collect()
    assert [found() for found in old] == [None, None]
