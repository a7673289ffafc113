"""Requests of ensembles over models that answer when the test says so."""

import gc
import logging
import weakref
from typing import Any

import pytest

from app.core.errors import ErrorCode, FailureReason, InferError, invalid_arg, unavailable
from app.core.tensors import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
)
from tests.unit.ensembles import BRANCHES, CHAIN, DECOUPLED, Models, ensemble, model, step, tensor, turn


async def test_chain_passes_on_the_same_bytes() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor(), id="7", priority=2, timeout_us=5, deadline=9e9, parameters={"k": 1})
    asked = models.take("a")
    request = asked.request
    assert (request.id, request.priority, request.timeout_us, request.deadline) == ("7", 2, 5, 9e9)
    assert request.parameters == {"k": 1}
    assert [output.name for output in request.outputs] == ["y"]
    assert models.asked == []

    middle = memoryview(bytes(16))
    asked.answer(Tensor("y", "FP32", (4,), middle))
    assert models.asked[0].data["x"] is middle
    last = memoryview(bytes(16))
    models.take("b").answer(Tensor("y", "FP32", (4,), last))
    (response,) = models.responses
    assert (response.model_name, response.model_version, response.id, response.final) == ("e", "1", "7", True)
    assert [(output.name, output.shape) for output in response.outputs] == [("OUT", (4,))]
    assert response.outputs[0].data is last


async def test_each_step_is_resolved_once() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor())
    models.take("a").answer(tensor("y"))
    models.take("b").answer(tensor("y"))
    assert models.responses[0].failure is None
    assert models.resolved == ["e", "a", "b"]


async def test_bytes_are_not_copied_however_many_steps() -> None:
    count = 5
    steps = [step({"x": f"T{i}"}, {"y": f"T{i + 1}"}, "a") for i in range(count)]
    models = Models(e=ensemble(*steps, inputs="T0", outputs=f"T{count}"), a=model())
    data = memoryview(bytes(16))
    models.infer(Tensor("T0", "FP32", (4,), data))
    for _ in range(count):
        asked = models.take("a")
        assert asked.data["x"] is data
        asked.answer(Tensor("y", "FP32", (4,), data))
    assert models.responses[0].outputs[0].data is data


async def test_independent_steps_run_in_parallel() -> None:
    models = Models(e=BRANCHES, a=model(), b=model(), c=model("l r"))
    models.infer(tensor())
    assert models.waiting() == ["a", "b"]
    models.take("b").answer(tensor("y", fill=2))
    assert models.waiting() == ["a"]
    models.take("a").answer(tensor("y", fill=3))
    assert models.waiting() == ["c"]
    assert models.asked[0].data == {"l": bytes([3]) * 16, "r": bytes([2]) * 16}
    models.take("c").answer(tensor("y"))
    assert [response.final for response in models.responses] == [True]


async def test_sequence_fields_reach_every_step() -> None:
    models = Models(e=BRANCHES, a=model(), b=model(), c=model("l r"))
    models.infer(tensor(), sequence_id="s", sequence_start=True, sequence_end=True)
    for asked in models.asked:
        request = asked.request
        assert (request.sequence_id, request.sequence_start, request.sequence_end) == ("s", True, True)


async def test_steps_of_unrequested_outputs_do_not_run() -> None:
    config = ensemble(step({"x": "IN"}, {"y": "A"}, "a"), step({"x": "IN"}, {"y": "B"}, "b"), outputs="A B")
    models = Models(e=config, a=model(), b=model())
    models.infer(tensor(), outputs=(RequestedOutput("B"),))
    assert models.waiting() == ["b"]
    models.take("b").answer(tensor("y"))
    assert [output.name for output in models.responses[0].outputs] == ["B"]


async def test_a_failing_step_ends_the_request_and_cancels_the_others() -> None:
    models = Models(e=BRANCHES, a=model(), b=model(), c=model("l r"))
    models.infer(tensor(), id="1")
    other = models.asked[1]
    models.take("a").answer(error=InferError(ErrorCode.UNAVAILABLE, "too late", FailureReason.REJECTED))
    await turn()
    (response,) = models.responses
    assert response.failure is not None and response.final and response.id == "1"
    assert (response.failure.code, response.failure.message, response.failure.reason) == (
        ErrorCode.UNAVAILABLE,
        "in ensemble 'e', too late",
        FailureReason.REJECTED,  # an overloaded step's client is told what that of an overloaded model is
    )
    assert response.model_name == "e", "it is an answer, not a refusal"
    counted = models.ensembles.report(models.resolve("e")).failures
    assert set(counted) == {FailureReason.OTHER}, "an ensemble's counters do not distinguish a step's reasons"
    assert other.cancelled
    other.answer(tensor("y"))
    assert len(models.responses) == 1


async def test_cancelling_reaches_the_running_steps() -> None:
    models = Models(e=BRANCHES, a=model(), b=model(), c=model("l r"))
    call = models.infer(tensor())
    call.cancel()
    assert models.responses == []
    await turn()
    assert [asked.cancelled for asked in models.asked] == [True, True]
    error = models.responses[0].failure
    assert error is not None
    assert (error.code, error.reason) == (ErrorCode.CANCELLED, FailureReason.CANCELED)
    call.cancel()
    await turn()
    assert len(models.responses) == 1


async def test_advice_reaches_the_running_and_the_later_steps_and_ends_none() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    call = models.infer(tensor())
    first = models.take("a")
    call.cancel(advice=True)
    first.answer(tensor("y"))
    last = models.take("b")
    assert [(asked.advised, asked.cancelled) for asked in (first, last)] == [(True, False)] * 2
    last.answer(tensor("y"))
    assert [response.failure for response in models.responses] == [None]


async def test_a_bad_request_fails_like_that_of_any_model() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    models.infer(tensor(shape=(5,)), id="9")
    assert models.responses == []
    await turn()
    assert models.error.startswith("[request id: 9] unexpected shape for input 'IN' for model 'e'.")
    assert models.asked == []


async def test_step_of_an_unloaded_model_fails_the_request() -> None:
    models = Models(e=CHAIN, a=model())
    models.infer(tensor())
    models.take("a").answer(tensor("y"))
    await turn()
    assert models.error == "in ensemble 'e', Request for unknown model: 'b' is not found"


async def test_step_that_cannot_be_sent_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models(e=CHAIN, a=model(), b=model())

    def refuse(entry: Any, request: Any, sink: Any) -> Any:
        raise unavailable("nobody there")

    monkeypatch.setattr(models, "submit", refuse)
    request = InferRequest("e", "", (tensor(),))
    run = models.ensembles.start(models.resolve("e"), request, models.responses.append)
    assert models.responses == [] and run is not None
    await turn()
    assert models.error == "in ensemble 'e', nobody there"


class TestOutputLeftOutByAStep:
    async def test_response_is_without_it(self) -> None:
        two = ensemble(step({"x": "IN"}, {"y": "A", "z": "B"}, "a"), outputs="A B")
        models = Models(e=two, a=model(outputs="y z"))
        models.infer(tensor())
        models.take("a").answer(tensor("y"))
        (response,) = models.responses
        assert [output.name for output in response.outputs] == ["A"] and response.final

    async def test_verbose_log_names_it(self, caplog: pytest.LogCaptureFixture) -> None:
        """In Triton's words."""
        caplog.set_level(logging.DEBUG, "app.ensemble")
        two = ensemble(step({"x": "IN"}, {"y": "A", "z": "B"}, "a"), outputs="A B")
        models = Models(e=two, a=model(outputs="y z"))
        models.infer(tensor())
        models.take("a").answer(tensor("y"))
        assert caplog.messages == ["Composing models did not output tensor B"]

    async def test_later_step_is_called_without_an_optional_input(self) -> None:
        config = ensemble(step({"x": "IN"}, {"y": "M"}, "a"), step({"x": "IN", "z": "M"}, {"y": "OUT"}, "b"))
        models = Models(e=config, a=model(), b=model("x z?"))
        models.infer(tensor())
        models.take("a").answer()
        assert list(models.asked[0].data) == ["x"]

    async def test_refusal_of_a_later_step_is_the_error(self) -> None:
        models = Models(e=CHAIN, a=model(), b=model())
        models.infer(tensor())
        models.take("a").answer()
        asked = models.take("b")
        assert asked.data == {}
        asked.answer(error=invalid_arg("expected 1 inputs but got 0 inputs for model 'b'"))
        await turn()
        assert models.error == "in ensemble 'e', expected 1 inputs but got 0 inputs for model 'b'"


async def test_batch_dimension_is_added_and_removed() -> None:
    models = Models(e=CHAIN, a=model(batch=8), b=model())
    models.infer(tensor())
    asked = models.take("a")
    assert asked.request.inputs[0].shape == (1, 4)
    asked.answer(tensor("y", (1, 4)))
    assert models.asked[0].request.inputs[0].shape == (4,)
    models.take("b").answer(tensor("y"))
    assert models.responses[0].outputs[0].shape == (4,)


@pytest.mark.parametrize(("batch", "outside", "inside"), [(0, (2, 2), (4,)), (8, (3, 2, 2), (3, 4))])
async def test_reshaped_tensors_of_the_ensemble(
    batch: int, outside: tuple[int, ...], inside: tuple[int, ...]
) -> None:
    config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), batch=batch)
    reshaped = config.replace("dims: [ 4 ]", "dims: [ 2, 2 ] reshape { shape: [ 4 ] }")
    models = Models(e=reshaped, a=model(batch=batch))
    models.infer(tensor(shape=outside))
    asked = models.take("a")
    assert asked.request.inputs[0].shape == inside
    asked.answer(tensor("y", inside))
    assert models.responses[0].outputs[0].shape == outside


async def test_output_of_a_batching_model_is_reshaped_without_its_batch_dimension() -> None:
    config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"))
    reshaped = config.replace("dims: [ 4 ]", "dims: [ 2, 2 ] reshape { shape: [ 4 ] }")
    models = Models(e=reshaped, a=model(batch=8))
    models.infer(tensor(shape=(2, 2)))
    asked = models.take("a")
    assert asked.request.inputs[0].shape == (1, 4)
    asked.answer(tensor("y", (1, 4)))
    assert models.responses[0].outputs[0].shape == (2, 2)


async def test_an_ensemble_within_an_ensemble() -> None:
    outer = ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "e"))
    models = Models(outer=outer, e=CHAIN, a=model(), b=model())
    models.infer(tensor(), name="outer")
    assert models.asked[0].request.chain == ("outer", "e")
    models.take("a").answer(tensor("y"))
    models.take("b").answer(error=unavailable("gone"))
    await turn()
    await turn()
    assert models.error == "in ensemble 'outer', in ensemble 'e', gone"


class TestOptionalInputs:
    CONFIG = ensemble(step({"x": "IN", "z": "EXTRA"}, {"y": "OUT"}, "a"), inputs="IN").replace(
        "output {", 'input { name: "EXTRA" data_type: TYPE_FP32 dims: [ 4 ] optional: true } output {', 1
    )

    async def test_one_left_out(self) -> None:
        models = Models(e=self.CONFIG, a=model("x z?"))
        models.infer(tensor())
        assert list(models.take("a").data) == ["x"]

    async def test_one_given(self) -> None:
        models = Models(e=self.CONFIG, a=model("x z?"))
        models.infer(tensor(), tensor("EXTRA"))
        assert sorted(models.take("a").data) == ["x", "z"]


class TestStatistics:
    async def test_successes_and_failures(self) -> None:
        models = Models(
            e=CHAIN.replace("max_batch_size: 0", "max_batch_size: 4"), a=model(batch=4), b=model(batch=4)
        )
        models.infer(tensor(shape=(3, 4)))
        models.take("a").answer(tensor("y", (3, 4)))
        models.take("b").answer(tensor("y", (3, 4)))
        models.infer(tensor(shape=(1, 4)))
        models.take("a").answer(error=InferError(ErrorCode.INTERNAL, "no", FailureReason.BACKEND))
        stats = models.ensembles.report(models.resolve("e"))
        assert (stats.inference_count, stats.execution_count) == (3, 1)
        ((size, batch),) = stats.batches.items()
        assert (size, batch.compute_infer.count, batch.compute_infer.ns > 0) == (3, 1, True)
        assert (stats.success.count, stats.fail.count, stats.queue.count, stats.queue.ns) == (1, 2, 1, 0)
        assert stats.success.ns > 0 and stats.failures == {"OTHER": 2}, "as in Triton"

    async def test_unloading_resets_the_counters(self) -> None:
        models = Models(e=CHAIN, a=model(), b=model())
        models.infer(tensor(shape=(5,)))
        models.ensembles.retain(())
        assert models.ensembles.report(models.resolve("e")).fail.count == 0


async def test_available_when_every_step_is() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    assert models.available(models.resolve("e"))
    models.out.add("b")
    assert not models.available(models.resolve("e"))


async def test_responses_have_the_sequence_parameters() -> None:
    models = Models(e=CHAIN, a=model(), b=model())
    for fields, identity in (
        ({}, 0),
        ({"sequence_id": "s", "sequence_start": True}, "s"),
        ({"sequence_id": 2**64 - 1, "sequence_end": True}, -1),
    ):
        models.infer(tensor(), **fields)
        for name in ("a", "b"):
            models.take(name).answer(tensor("y"))
        assert models.responses.pop().parameters == {
            "sequence_id": identity,
            "sequence_start": "sequence_start" in fields,
            "sequence_end": "sequence_end" in fields,
        }


class Receiver:
    """Keeps its request to cancel it, as the fronts do."""

    def __init__(self, models: Models, data: Tensor) -> None:
        self.responses = 0
        self.call = models.submit(models.resolve("e"), InferRequest("e", "", (data,)), self.take)

    def take(self, response: InferResponse) -> None:
        self.responses += 1


@pytest.mark.parametrize("end", ["answer", "error", "cancel"])
@pytest.mark.parametrize("decoupled", [False, True])
async def test_finished_execution_is_released(end: str, decoupled: bool) -> None:
    """It would be garbage for the collector, which seldom comes, and tensors of megabytes with it."""
    more = DECOUPLED if decoupled else ""
    steps = step({"x": "IN"}, {"y": "MID"}, "a"), step({"x": "MID"}, {"y": "OUT"}, "b")
    models = Models(e=ensemble(*steps, more=more), a=model(more=more), b=model())
    gc.disable()
    try:
        receiver = Receiver(models, tensor())
        gone = weakref.ref(receiver)
        asked = models.take("a")
        for _ in range(2 if decoupled else 1):
            asked.answer(tensor("y"), final=not decoupled)
        if end == "cancel":
            receiver.call.cancel()
        else:
            error = unavailable("no") if end == "error" else None
            for number in range(len(models.asked)):
                models.asked[number].answer(*(() if error else (tensor("y"),)), error=error)
            if decoupled and not error:
                asked.answer()
        await turn()
        assert receiver.responses == (3 if decoupled and end == "answer" else 1)
        models.asked.clear()
        del receiver, asked
        assert gone() is None
    finally:
        gc.enable()
