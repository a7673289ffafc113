"""Batches of a served model: composition, order, and queue timeouts."""

import asyncio

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.tensors import InferRequest, InferResponse, Tensor
from deployments.event_loop_execution import executor, policy
from deployments.scheduling.shape_key import ShapeKey, make_shape_key
from tests.unit.deployments.served_model_bench import BATCHING, CONFIG, Bench, request
from tests.waiting import block_until, let_run

pytestmark = pytest.mark.usefixtures("data_plane")


def test_dynamic_batching_batches_queued_requests(bench: Bench) -> None:
    bench.load(CONFIG + BATCHING)
    assert bench.serve_batch.limits == (8, 1024)
    held = bench.hold()
    answers = [bench.submit(request(request_id, 3))[0] for request_id in ("a", "bad", "c")]
    bench.backend.gate.set()
    assert held.result(60).failure is None
    responses = [answer.result(60) for answer in answers]
    assert [response.failure is None for response in responses] == [True, False, True]
    assert bench.executed() == [["hold"], ["a", "bad"], ["c"]]
    report = bench.report()
    assert report.failures == {"OTHER": 1}
    assert {size: b.compute_infer.count for size, b in report.batches.items()} == {1: 1, 3: 1, 6: 1}
    assert report.compute_infer.count == report.success.count == 3


def test_queue_size_of_the_configuration_applies(bench: Bench) -> None:
    bench.load(CONFIG + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
    bench.hold()
    waiting, _ = bench.submit(request("a"))
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.submit(request("b"))
    bench.backend.gate.set()
    assert waiting.result(60).failure is None


def test_queue_is_bounded_by_bytes(bench: Bench) -> None:
    bench.load(CONFIG, max_pending_bytes=10)
    bench.hold()
    bench.submit(request("a", 2))
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.submit(request("b"))


def test_requests_batch_with_equal_shapes_only(bench: Bench) -> None:
    bench.load(CONFIG.replace("dims: [ 4 ]", "dims: [ -1 ]") + BATCHING)
    bench.hold()
    widths = {"a": 2, "b": 2, "c": 3}
    tensors = {i: Tensor("INPUT0", "UINT8", (1, width), bytes(width)) for i, width in widths.items()}
    answers = [bench.submit(InferRequest("m", "", (t,), id=i))[0] for i, t in tensors.items()]
    bench.backend.gate.set()
    assert all(answer.result(60).failure is None for answer in answers)
    assert bench.executed() == [["hold"], ["a", "b"], ["c"]]


def test_custom_batching_strategy_limits_the_volume(bench: Bench) -> None:
    """Triton's example of a custom strategy: a limit on the bytes of a batch."""
    (bench.directory / "m" / "batchstrategy.py").write_text(STRATEGY)
    limit = 'parameters { key: "MAX_BATCH_VOLUME_BYTES" value { string_value: "8" } }'
    bench.load(CONFIG + BATCHING + limit)
    held = bench.hold()
    answers = [
        bench.submit(request(name, rows))[0] for name, rows in (("a", 1), ("b", 1), ("c", 2), ("d", 8))
    ]
    bench.backend.gate.set()
    assert all(answer.result(60).failure is None for answer in [held, *answers])
    assert bench.executed() == [["hold"], ["a", "b"], ["c"], ["d"]]


def test_short_requests_that_arrive_together_are_answered_in_one_turn_of_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is an execution of its own, as before: one that fails or is cancelled harms no other."""
    monkeypatch.setattr(policy, "SHORT_NS", 10**12)
    monkeypatch.setattr(executor, "TURN_NS", 10**12)
    model = bench.load(CONFIG + 'parameters { key: "short" value { string_value: "true" } }')
    for i in range(policy.REQUIRED_RUNS):
        bench.infer(request(str(i)))
    answers: dict[str, InferResponse] = {}

    async def together() -> list[str]:
        sent = [request(name) for name in ("a", "bad", "gone", "c")]
        cancels = [model.accept(each, lambda found: answers.update({found.id: found})) for each in sent]
        cancels[2]()
        assert "a" not in answers, "not while requests are still read"
        await asyncio.sleep(0)
        return list(answers)

    before = len(bench.executed())
    assert sorted(bench.plane.call(together(), 60)) == ["a", "bad", "c", "gone"]
    assert bench.executed()[before:] == [["a"], ["bad"], ["c"]]
    assert [name for name, found in answers.items() if found.failure is None] == ["a", "c"]
    report = bench.report()
    assert report.failures == {"OTHER": 1, "CANCELED": 1}
    assert report.execution_count == report.batches[1].compute_infer.count == policy.REQUIRED_RUNS + 2
    assert report.success.count == policy.REQUIRED_RUNS + 2


STRATEGY = """
from backends.strategy import BatchStrategy


class TritonBatchStrategy(BatchStrategy):
    def batcher_initialize(self, model):
        self.limit = int(model.parameter("MAX_BATCH_VOLUME_BYTES"))

    def batch_initialize(self):
        return [self.limit]

    def include_request(self, request, batch):
        batch[0] -= sum(len(tensor.data) for tensor in request.infer.inputs)
        return batch[0] >= 0
"""


def test_queue_policy_of_the_configuration_applies(bench: Bench) -> None:
    policy = """
    dynamic_batching {
      priority_levels: 2 default_priority_level: 2
      default_queue_policy { max_queue_size: 2 default_timeout_microseconds: 300000 }
      priority_queue_policy { key: 1 value { max_queue_size: 1 } }
    }
    """
    bench.load(CONFIG + policy)
    held = bench.hold()
    answers = {name: bench.submit(request(name, 8, priority=int(name[0])))[0] for name in ("2a", "1", "2b")}
    for priority in (0, 1):
        with pytest.raises(InferError, match="Exceeds maximum queue size"):
            bench.submit(request("refused", priority=priority))
    for name in ("2a", "2b"):  # answered while the instance is still busy
        late = answers[name].result(60)
        assert late.failure is not None and late.failure.message == "Request timeout expired"
        assert late.model_name, "generate_stream tells by it that this is no refusal"
    bench.backend.gate.set()
    assert held.result(60).failure is None and answers["1"].result(60).failure is None
    assert bench.executed() == [["hold"], ["1"]]
    assert bench.report().failures == {"REJECTED": 4}


def test_ordered_responses_of_several_instances(bench: Bench) -> None:
    bench.load(CONFIG + "dynamic_batching { preserve_ordering: true } instance_group { count: 2 }")
    held = bench.hold()
    later, _ = bench.submit(request("later"))
    block_until(lambda: ["later"] in bench.executed())
    bench.plane.call(let_run(), 60)
    assert not later.done()
    bench.backend.gate.set()
    assert held.result(60).failure is None and later.result(60).failure is None


def test_passive_instances_are_loaded_and_not_used(bench: Bench) -> None:
    bench.load(CONFIG + 'instance_group [ { name: "idle" passive: true }, { name: "used" } ]')
    for _ in range(5):
        bench.infer(request("a"))
    assert {call[1] for call in bench.backend.calls if call[0] == "load"} == {"idle_0", "used_0"}
    assert {call[1] for call in bench.backend.calls if call[0] == "execute"} == {"used_0"}


def test_start_is_delayed_by_tritons_test_hook(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "3")
    bench.load(CONFIG + BATCHING)
    answers = [bench.submit(request(name))[0] for name in "abc"]
    assert [answer.result(60).failure for answer in answers] == [None] * 3
    assert bench.executed() == [["a", "b", "c"]]


def test_shapes_that_may_share_a_batch() -> None:
    def key(*inputs: str) -> ShapeKey | None:
        config = mc.ModelConfig(max_batch_size=8)
        for line in inputs:
            text_format.Parse(line, config.input.add())
        return make_shape_key(config)

    def of(**shapes: tuple[int, ...]) -> InferRequest:
        return InferRequest(
            "m", "", tuple(Tensor(name, "INT8", shape, b"") for name, shape in shapes.items())
        )

    ragged = 'name: "R" dims: -1 allow_ragged_batch: true'
    assert key(ragged) is None
    both = key(ragged, 'name: "V" dims: -1')
    assert both is not None
    assert both(of(R=(1, 3), V=(1, 2))) == both(of(V=(4, 2), R=(2, 9)))
    assert both(of(R=(1, 3), V=(1, 2))) != both(of(R=(1, 3), V=(1, 3)))
    optional = key('name: "A" dims: 2', 'name: "B" dims: 2 optional: true')
    assert optional is not None
    assert optional(of(A=(1, 2))) != optional(of(A=(1, 2), B=(1, 2)))
    assert optional(of(B=(1, 2), A=(1, 2))) == optional(of(A=(3, 2), B=(3, 2)))
