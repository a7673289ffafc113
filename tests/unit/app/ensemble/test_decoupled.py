"""Requests of decoupled ensembles over models that answer when the test says so."""

from app.core.errors import unavailable
from tests.unit.ensembles import DECOUPLED, Models, ensemble, model, step, tensor, turn

SEQUENCE = ["sequence_end", "sequence_id", "sequence_start"]
CONFIG = ensemble(
    step({"x": "IN"}, {"y": "MID"}, "d"),
    step({"x": "IN"}, {"y": "SIDE"}, "a"),
    step({"x": "MID", "z": "SIDE"}, {"y": "OUT"}, "b"),
    more=DECOUPLED,
    limit=2,
)


def decoupled() -> Models:
    return Models(e=CONFIG, d=model(more=DECOUPLED), a=model(), b=model("x z"))


async def test_each_response_runs_the_rest() -> None:
    models = decoupled()
    models.infer(tensor(), id="3")
    source = models.take("d")
    source.answer(tensor("y", fill=1), final=False)
    assert models.waiting() == ["a"]
    models.take("a").answer(tensor("y", fill=9))
    source.answer(tensor("y", fill=2), final=False)
    assert models.waiting() == ["b", "b"]
    assert [asked.data["x"][0] for asked in models.asked] == [1, 2]
    assert [asked.data["z"][0] for asked in models.asked] == [9, 9]
    source.answer(tensor("y", fill=3), final=False)
    source.answer()
    assert models.waiting() == ["b", "b"], "max_inflight_requests is 2"
    models.asked.pop(1).answer(tensor("y", fill=22))
    models.take("b").answer(tensor("y", fill=11))
    models.take("b").answer(tensor("y", fill=33))
    assert [(r.final, [o.data[0] for o in r.outputs]) for r in models.responses] == [
        (False, [22]),
        (False, [11]),
        (True, [33]),
    ]
    assert models.runner.report(models.resolve("e")).success.count == 1


async def test_end_of_a_step_after_its_last_response_is_a_response_of_its_own() -> None:
    models = decoupled()
    models.infer(tensor(), sequence_id=7)
    models.take("a").answer(tensor("y"))
    source = models.take("d")
    source.answer(tensor("y", fill=1), final=False)
    models.take("b").answer(tensor("y", fill=11))
    source.answer()
    assert [(r.final, len(r.outputs)) for r in models.responses] == [(False, 1), (True, 0)]
    assert [sorted(r.parameters) for r in models.responses] == [SEQUENCE, []]


async def test_last_response_has_the_sequence_parameters() -> None:
    models = decoupled()
    models.infer(tensor(), sequence_id=7)
    models.take("a").answer(tensor("y"))
    models.take("d").answer(tensor("y"))
    models.take("b").answer(tensor("y"))
    assert [(r.final, sorted(r.parameters)) for r in models.responses] == [(True, SEQUENCE)]


async def test_no_response_at_all() -> None:
    models = decoupled()
    models.infer(tensor())
    models.take("a").answer(tensor("y"))
    models.take("d").answer()
    assert [(r.final, r.outputs, r.failure) for r in models.responses] == [(True, (), None)]


async def test_an_error_after_a_response() -> None:
    models = decoupled()
    models.infer(tensor())
    models.take("a").answer(tensor("y"))
    source = models.take("d")
    source.answer(tensor("y"), final=False)
    models.take("b").answer(tensor("y"))
    source.answer(error=unavailable("broken"))
    await turn()
    assert [response.final for response in models.responses] == [False, True]
    assert models.error == "in ensemble 'e', broken"
