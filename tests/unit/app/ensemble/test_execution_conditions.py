"""Steps that run only when a tensor says so."""

from app.core.tensors import Tensor
from tests.unit.ensembles import Models, ensemble, model, step, tensor


class TestConditions:
    CONFIG = ensemble(
        step({"x": "IN"}, {"y": "MID", "go": "GO"}, "a"),
        step({"x": "MID"}, {"y": "THEN"}, "b"),
        step({"x": "MID"}, {"y": "ELSE"}, "c"),
        step({"x": "THEN"}, {"y": "AFTER"}, "d"),
        step({"l": "AFTER", "r": "ELSE"}, {"y": "OUT"}, "j"),
        outputs="OUT AFTER",
        more='parameters { key: "step.1.when" value { string_value: "GO" } } '
        'parameters { key: "step.2.when" value { string_value: "!GO" } }',
    )

    async def run(self, go: bool, join: str = "l? r?") -> Models:
        models = Models(e=self.CONFIG, a=model(), b=model(), c=model(), d=model(), j=model(join))
        models.infer(tensor())
        flag = Tensor("go", "BOOL", (1,), bytes([go]))
        models.take("a").answer(tensor("y"), flag)
        return models

    async def test_step_runs_when_its_condition_is_true(self) -> None:
        models = await self.run(True)
        assert models.waiting() == ["b"]
        models.take("b").answer(tensor("y"))
        models.take("d").answer(tensor("y"))
        join = models.take("j")
        assert list(join.data) == ["l"]
        join.answer(tensor("y"))
        assert [output.name for output in models.responses[0].outputs] == ["OUT", "AFTER"]

    async def test_skipped_step_skips_steps_that_need_it(self) -> None:
        models = await self.run(False)
        assert models.waiting() == ["c"]
        models.take("c").answer(tensor("y"))
        join = models.take("j")
        assert list(join.data) == ["r"]
        join.answer(tensor("y"))
        assert [output.name for output in models.responses[0].outputs] == ["OUT"]

    async def test_all_outputs_skipped_gives_an_empty_response(self) -> None:
        models = await self.run(False, join="l r?")
        models.take("c").answer(tensor("y"))
        (response,) = models.responses
        assert (response.outputs, response.failure, response.final) == ((), None, True)
