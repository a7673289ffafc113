"""Ensembles that are part of a call by one of their own steps."""

import pytest

from tests.unit.ensembles import CHAIN, Models, model, tensor, turn


async def test_circular_ensembles_are_refused() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor(), chain=("e", "caller"))
    await turn()
    assert "e -> caller -> e" in models.error


@pytest.mark.parametrize(("count", "refused"), [(1, True), (2, False)])
async def test_a_step_whose_model_calls_the_ensemble_needs_another_instance(
    count: int, refused: bool
) -> None:
    group = f"instance_group {{ kind: KIND_CPU count: {count} }}"
    models = Models(e=CHAIN, a=model(more=group), b=model())
    models.infer(tensor(), chain=("a",))
    await turn()
    assert [asked.request.chain for asked in models.asked] == ([] if refused else [("a", "e")])
    assert not refused or "circular call of models: a -> e -> a" in models.error
