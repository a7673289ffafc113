"""What traced requests of ensembles tell of their steps."""

import msgspec

from app.core.errors import unavailable
from app.core.tensors import (
    TENSORS_TRACE,
    InferResponse,
    Timestamps,
    TracedCall,
)
from tests.unit.ensembles import CHAIN, DECOUPLED, Models, ensemble, model, step, tensor, turn


async def test_traced_request_has_the_calls_of_its_steps() -> None:
    models = Models(e=CHAIN, outer=ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "e")), a=model(), b=model())
    models.infer(tensor(), name="outer", id="7", trace="-")
    inner = TracedCall("called", "1", "", Timestamps(1_000, request_end=1_001))
    answer = InferResponse("a", "4", (tensor("y"),), timestamps=Timestamps(999, request_end=1_002))
    models.take("a").sink(msgspec.structs.replace(answer, calls=(inner,)))
    models.take("b").answer(tensor("y"))
    (response,) = models.responses
    (chain,) = response.calls
    first, second = chain.calls
    assert [(call.model_name, call.request_id) for call in (chain, first, second)] == [
        ("e", "7"), ("a", "7"), ("b", "7")
    ]  # fmt: skip
    assert response.timestamps is not None
    started, ended = response.timestamps.request_start, response.timestamps.request_end
    assert started <= chain.timestamps.request_start <= second.timestamps.request_start
    assert second.timestamps.request_end <= chain.timestamps.request_end <= ended
    # The replica of `a` has another clock: its times, and those of what it called, are moved alike.
    assert started <= first.timestamps.request_start <= first.timestamps.request_end <= ended
    assert first.timestamps.request_end - first.timestamps.request_start == 3
    assert first.calls[0].timestamps.request_start - first.timestamps.request_start == 1


async def test_failed_traced_request_has_the_calls_of_its_steps() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor(), trace="-")
    models.take("a").answer(error=unavailable("busy"))
    await turn()
    (response,) = models.responses
    assert response.failure is not None
    assert [call.model_name for call in response.calls] == ["a"]


async def test_tensor_trace_has_the_tensors_of_steps() -> None:
    models = Models(e=CHAIN, outer=ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "e")), a=model(), b=model())
    models.infer(tensor(), name="outer", trace=TENSORS_TRACE)
    models.take("a").answer(tensor("y", fill=2))
    models.take("b").answer(tensor("y", fill=3))
    (response,) = models.responses
    (chain,) = response.calls
    first, second = chain.calls
    assert (chain.inputs, chain.outputs) == ((tensor(),), (tensor("OUT", fill=3),))
    assert (first.inputs, first.outputs) == ((tensor("x"),), (tensor("y", fill=2),))
    assert (second.inputs, second.outputs) == ((tensor("x", fill=2),), (tensor("y", fill=3),))


async def test_every_response_of_a_decoupled_step_is_traced() -> None:
    models = Models(e=ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), more=DECOUPLED), a=model(more=DECOUPLED))
    models.infer(tensor(), trace=TENSORS_TRACE)
    asked = models.take("a")
    for fill in (1, 2):
        asked.answer(tensor("y", fill=fill), final=False)
    asked.answer()
    (call,) = models.responses[-1].calls
    assert call.outputs == (tensor("y", fill=1), tensor("y", fill=2))


async def test_untraced_request_has_no_calls() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor())
    for name in ("a", "b"):
        models.take(name).answer(tensor("y"))
    assert (models.responses[0].calls, models.responses[0].timestamps) == ((), None)
