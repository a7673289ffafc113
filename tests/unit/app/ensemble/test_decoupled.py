"""Requests of decoupled ensembles over models that answer when the test says so."""

from app.core.errors import unavailable
from app.core.inference import Call
from app.core.tensors import InferRequest
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
    assert models.ensembles.report(models.resolve("e")).success.count == 1


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


async def test_requests_share_the_limit_of_a_step() -> None:
    """As in Triton since 26.04: two requests with two calls each find two slots, not four."""
    models = decoupled()
    sources = []
    for request in ("first", "second"):
        models.infer(tensor(), id=request)
        models.take("a").answer(tensor("y"))
        sources.append(models.take("d"))
    for fill in (1, 2):
        for source in sources:
            source.answer(tensor("y", fill=fill), final=False)
    assert models.waiting() == ["b", "b"]
    models.take("b").answer(tensor("y", fill=11))
    assert [(asked.request.id, asked.data["x"][0]) for asked in models.asked] == [("second", 1), ("first", 2)]
    for _ in range(3):
        models.take("b").answer(tensor("y"))
    for source in sources:
        source.answer()
    assert [(r.id, r.final) for r in models.responses] == [
        ("first", False),
        ("second", False),
        ("first", False),
        ("second", False),
        ("first", True),
        ("second", True),
    ]


async def test_requests_that_end_give_their_slots_to_others() -> None:
    models = Models(e=ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), limit=1), a=model())
    running, waiting, _ = (models.infer(tensor(), id=str(number)) for number in range(3))
    waiting.cancel()
    running.cancel()
    assert models.waiting() == ["a"], "the slot is taken until the call has ended"
    models.take("a").answer(error=unavailable("cancelled"))
    assert [asked.request.id for asked in models.asked] == ["2"]
    models.take("a").answer(tensor("y"))
    await turn()
    assert sorted((r.id, r.failure is None) for r in models.responses) == [
        ("0", False),
        ("1", False),
        ("2", True),
    ]


async def test_a_step_that_cannot_be_called_gives_its_slot_back() -> None:
    models = Models(e=ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), limit=1), a=model())
    answers, models.submit = models.submit, lambda *_: _refuse()  # type: ignore[method-assign]
    models.ensembles.start(models.resolve("e"), InferRequest("e", "", (tensor(),)), models.responses.append)
    models.submit = answers  # type: ignore[method-assign]
    await turn()
    models.infer(tensor())
    assert models.waiting() == ["a"]


def _refuse() -> Call:
    raise unavailable("no replica")
