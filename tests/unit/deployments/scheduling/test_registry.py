"""The scheduler, and the class of requests, that each configuration gets."""

from pathlib import Path

import msgspec
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.observability.statistics import Statistics
from backends.base import Model
from backends.registry.configuration import normalise
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.base import DirectScheduler, Scheduler
from deployments.scheduling.dynamic.scheduler import DynamicScheduler
from deployments.scheduling.registry import make_scheduler
from deployments.scheduling.sequence.requests import IterativeRequest, StatefulRequest
from deployments.scheduling.sequence.scheduler import SequenceScheduler
from deployments.scheduling.sequence.sequences import SequenceRequest
from deployments.spec import Limits, ModelSpec, ReplicaSettings
from tests.unit.scheduling_fakes import Answers, FakeServeBatch, offer, pending

SPEC = ModelSpec("m", 1, "", b"", "m:1", "", bytes(32))
STATE = 'state { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: 1 }'


POLICY = "default_queue_policy { max_queue_size: 2 }"


def made(text: str, spec: ModelSpec = SPEC) -> Scheduler:
    config = normalise(text_format.Parse(text, mc.ModelConfig(name="m", backend="identity")))
    model = Model(config, 1, Path("/"), {})
    return make_scheduler(model, spec, Statistics(), FakeServeBatch())


@pytest.mark.parametrize(
    ("text", "scheduler", "request_class"),
    [
        ("max_batch_size: 8", DirectScheduler, QueuedRequest),
        ("dynamic_batching {}", DirectScheduler, QueuedRequest),
        ("dynamic_batching { max_queue_delay_microseconds: 5 }", DirectScheduler, QueuedRequest),
        (f"dynamic_batching {{ {POLICY} }}", DynamicScheduler, QueuedRequest),
        ("dynamic_batching { preserve_ordering: true }", DynamicScheduler, QueuedRequest),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 }",
            DynamicScheduler,
            QueuedRequest,
        ),
        ("max_batch_size: 8 dynamic_batching {}", DynamicScheduler, QueuedRequest),
        ("sequence_batching {}", SequenceScheduler, SequenceRequest),
        (f"sequence_batching {{ {STATE} }}", SequenceScheduler, StatefulRequest),
        ("sequence_batching { iterative_sequence: true }", SequenceScheduler, IterativeRequest),
    ],
)
def test_scheduling_choice_decides_scheduler_and_request_class(
    text: str, scheduler: type[Scheduler], request_class: type[QueuedRequest]
) -> None:
    chosen = made(text)
    assert (type(chosen), chosen.request_class) == (scheduler, request_class)


@pytest.mark.parametrize("batch", [0, 1])
async def test_queue_policy_holds_without_batches(batch: int) -> None:
    scheduler = made(f"max_batch_size: {batch} dynamic_batching {{ {POLICY} }}")
    answers = Answers()
    for name in "ab":
        scheduler.schedule(pending(answers, name))
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        scheduler.schedule(pending(answers, "c"))
    (instance,) = offer(scheduler)
    assert [[request.infer.id for request in batch.requests] for batch in instance.batches] == [["a"]]


def test_ensemble_has_no_scheduler() -> None:
    with pytest.raises(InferError, match="ensemble_scheduling is not available"):
        made("ensemble_scheduling { step { model_name: 'a' model_version: -1 } }")


QUEUE = 'parameters {{ key: "max_queue_secs" value {{ string_value: "{}" }} }}'


@pytest.mark.parametrize("scheduler", ["", "max_batch_size: 8 dynamic_batching {}", "sequence_batching {}"])
@pytest.mark.parametrize(
    ("parameter", "seconds"), [("", 7.0), (QUEUE.format("0.5"), 0.5), (QUEUE.format(0), 0)]
)
def test_bound_of_the_wait_is_that_of_the_model_or_the_server(
    scheduler: str, parameter: str, seconds: float
) -> None:
    spec = msgspec.structs.replace(SPEC, server=ReplicaSettings(limits=Limits(max_queue_s=7.0)))
    admission = made(f"{scheduler} {parameter}", spec).admission
    request = pending(Answers(), "r")
    for wait_s, refused in ((0.9 * seconds, False), (1.1 * seconds, seconds > 0)):
        assert (admission.refusal(request, int(wait_s * 1e9)) is not None) == refused


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_bound_of_the_wait_must_be_a_number_of_seconds(text: str) -> None:
    with pytest.raises(InferError, match="parameter 'max_queue_secs' is no number of seconds"):
        made(QUEUE.format(text))
