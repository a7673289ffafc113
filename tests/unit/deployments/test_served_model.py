"""A served model over a backend of its own, without a cluster: loading, statistics, failures, warm-up."""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.core.config_normalise import normalise
from app.core.errors import ErrorCode, InferError
from app.core.log import LogConfig
from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor
from app.transport.loop import LoopThread
from deployments import served_model
from deployments.served_model import ServedModel, ShapeKey
from deployments.spec import ModelSpec
from tests.unit.backends import environments
from tests.unit.deployments.fakes import FakeServeBatch

BACKEND = """
import threading
from tritonclient.grpc import model_config_pb2 as mc
from app.core.errors import internal
from app.core.tensors import InferResponse, failed
from backends.base import Backend

calls = []
gate = threading.Event()
entered = threading.Semaphore(0)


class TritonBackend(Backend):
    @classmethod
    def auto_complete(cls, model):
        calls.append("auto_complete")
        config = mc.ModelConfig()
        config.CopyFrom(model.config)
        if not config.input:
            config.max_batch_size = 8
            config.input.add(name="INPUT0", data_type=mc.TYPE_UINT8, dims=[4])
            config.output.add(name="OUTPUT0", data_type=mc.TYPE_UINT8, dims=[4])
        return config

    def initialize(self, config):
        calls.append(("initialize", dict(config)))

    def model_initialize(self, model):
        calls.append("model_initialize")

    def model_finalize(self, model):
        calls.append("model_finalize")

    def finalize(self):
        calls.append("finalize")

    def instance_initialize(self, instance):
        if instance.model.parameter("break") == str(instance.index):
            raise internal("the weights are unreadable")
        calls.append(("load", instance.name, instance.kind, instance.device_id))

    def instance_finalize(self, instance):
        calls.append(("unload", instance.name))

    def instance_execute(self, instance, requests):
        ids = [request.infer.id for request in requests]
        calls.append(("execute", threading.current_thread().name, ids))
        if "hold" in ids:
            entered.release()
            assert gate.wait(5)
        for request in requests:
            if "bad" in request.infer.id or instance.model.parameter("answer") == "error":
                request.reply(failed(internal("a bad input")))
            else:
                tensor = request.infer.inputs[0]
                request.reply(InferResponse(outputs=(tensor,), parameters={"seen": len(ids)}))
"""

CONFIG = """
name: "m"
backend: "probe"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_UINT8 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ 4 ] }
"""
BATCHING = "dynamic_batching {}\n"


class Bench:
    """Loads models into one data plane, and talks to the last one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "backends" / "probe").mkdir(parents=True)
        (directory / "backends" / "probe" / "backend.py").write_text(BACKEND)
        (directory / "m" / "1").mkdir(parents=True)
        self.plane = LoopThread("test-data-plane")
        self.serve_batch = FakeServeBatch()
        self.model: ServedModel | None = None

    def spec(self, config: str = CONFIG, **fields: Any) -> ModelSpec:
        parsed = normalise(text_format.Parse(config, mc.ModelConfig()))
        return ModelSpec(
            name="m",
            version=1,
            directory=str(self.directory / "m"),
            config=parsed.SerializeToString(),
            application="m:1",
            fingerprint="",
            key=bytes(32),
            socket_directory=fields.pop("socket_directory", ""),
            backend_directory=str(self.directory / "backends"),
            **fields,
        )

    def load(self, config: str = CONFIG, **fields: Any) -> ServedModel:
        self.model = ServedModel.load(self.spec(config, **fields), self.plane, self.serve_batch)
        self.plane.call(self.model.open())
        return self.model

    @property
    def backend(self) -> ModuleType:
        return sys.modules["nereid_backend_probe"]

    def executed(self) -> list[list[str]]:
        return [call[2] for call in self.backend.calls if call[0] == "execute"]

    def submit(self, request: InferRequest) -> "tuple[Future[InferResponse], Callable[[], None]]":
        """Submit on the loop; returns the final response to come and what cancels the request."""
        answer: Future[InferResponse] = Future()
        model = self.model
        assert model is not None

        async def start() -> Callable[[], None]:
            return model.submit(request, answer.set_result)

        cancel = self.plane.call(start(), 5)
        return answer, lambda: self.plane.call(_run(cancel), 5)

    def infer(self, request: InferRequest) -> InferResponse:
        return self.submit(request)[0].result(5)

    def hold(self) -> "Future[InferResponse]":
        """Occupy the instance until the gate opens."""
        answer, _ = self.submit(request("hold"))
        assert self.backend.entered.acquire(timeout=5)
        return answer

    def statistics(self) -> tuple[pb.ModelStatistics, dict[str, int], int]:
        assert self.model is not None
        answer = self.plane.call(self.model.control("statistics", None), 5)
        message = pb.ModelStatistics.FromString(answer["statistics"])
        return message, answer["failures"], answer["pending"]

    def close(self) -> None:
        if self.model is not None:
            if "nereid_backend_probe" in sys.modules:
                self.backend.gate.set()
            self.model.close(timeout=5)
        self.plane.stop()
        sys.modules.pop("nereid_backend_probe", None)


async def _run(call: Callable[[], None]) -> None:
    call()


def request(request_id: str, rows: int = 1, **fields: Any) -> InferRequest:
    tensor = Tensor("INPUT0", "UINT8", (rows, 4), bytes(range(4)) * rows)
    return InferRequest("m", "", (tensor,), id=request_id, **fields)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_life(bench: Bench) -> None:
    settings = {"": {"all": "1", "own": "0"}, "probe": {"own": "1"}, "other": {"x": "1"}}
    model = bench.load(backend_config=settings)
    response = bench.infer(request("a", 2))
    assert (response.model_name, response.model_version, response.id) == ("m", "1", "a")
    assert bytes(response.outputs[0].data) == bytes(range(4)) * 2
    assert response.parameters == {"seen": 1} and response.final and response.error is None
    assert model.healthy and model.outstanding == 0
    model.close(timeout=5)
    bench.model = None
    assert not model.healthy
    assert bench.backend.calls == [
        "auto_complete",
        ("initialize", {"all": "1", "own": "1"}),
        "model_initialize",
        ("load", "m_0", "CPU", 0),
        ("execute", "m_0", ["a"]),
        ("unload", "m_0"),
        "model_finalize",
        "finalize",
    ]


def test_configuration_is_completed_from_the_model(bench: Bench) -> None:
    model = bench.load('name: "m" backend: "probe"')
    assert model.config.max_batch_size == 8
    assert [spec.name for spec in model.config.input] == ["INPUT0"]
    assert model.config.instance_group[0].count == 1


def test_auto_complete_switched_off(bench: Bench) -> None:
    model = bench.load('name: "m" backend: "probe"', auto_complete=False)
    assert "auto_complete" not in bench.backend.calls
    assert (model.config.max_batch_size, len(model.config.input)) == (0, 0)


def test_configuration_that_cannot_be_served(bench: Bench) -> None:
    with pytest.raises(InferError, match="unable to find backend library for backend 'nonesuch'"):
        ServedModel.load(bench.spec(CONFIG.replace("probe", "nonesuch")), bench.plane)
    with pytest.raises(InferError, match="has kind KIND_GPU but no GPUs are available"):
        ServedModel.load(bench.spec(CONFIG + "instance_group { kind: KIND_GPU }"), bench.plane)


def test_instances_are_named_as_in_triton(bench: Bench) -> None:
    bench.load(CONFIG + 'instance_group [ { count: 2 }, { name: "own" count: 1 } ]')
    loaded = sorted(call[1] for call in bench.backend.calls if call[0] == "load")
    assert loaded == ["m_0_0", "m_0_1", "own_0"]


def test_failed_load_undoes_what_was_loaded(bench: Bench) -> None:
    config = (
        CONFIG
        + """
    instance_group { count: 3 }
    parameters { key: "break" value { string_value: "1" } }
    """
    )
    with pytest.raises(InferError, match="the weights are unreadable"):
        bench.load(config)
    assert sorted(call for call in bench.backend.calls if call[0] == "unload") == [
        ("unload", "m_0_0"),
        ("unload", "m_0_2"),
    ]
    assert bench.backend.calls[-2:] == ["model_finalize", "finalize"]


def test_statistics_of_successes(bench: Bench) -> None:
    bench.load()
    for rows in (1, 3, 3):
        bench.infer(request("a", rows))
    message, failures, pending = bench.statistics()
    assert (message.name, message.version) == ("m", "1")
    assert (message.inference_count, message.execution_count) == (7, 3)
    assert abs(message.last_inference - time.time() * 1000) < 60_000
    stats = message.inference_stats
    counts = (stats.success, stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
    assert [duration.count for duration in counts] == [3] * 5
    assert (stats.fail.count, stats.cache_hit.count, stats.cache_miss.count) == (0, 0, 0)
    assert 0 < stats.compute_infer.ns <= stats.success.ns
    assert 0 < stats.queue.ns < stats.success.ns
    assert [(b.batch_size, b.compute_infer.count) for b in message.batch_stats] == [(1, 1), (3, 2)]
    assert (failures, pending) == ({}, 0)


def test_a_traced_request_brings_its_times(bench: Bench) -> None:
    bench.load()
    assert bench.infer(request("plain")).timestamps is None
    before = time.monotonic_ns()
    times = bench.infer(request("traced", trace="-")).timestamps
    assert times is not None
    *in_order, activities = (getattr(times, name) for name in times.__struct_fields__)
    assert activities == ()
    assert in_order == sorted(in_order)
    assert before <= times.request_start <= times.request_end <= time.monotonic_ns()


def test_summaries_where_they_are_wanted(bench: Bench) -> None:
    model = bench.load()
    bench.infer(request("a"))
    assert "summaries" not in bench.plane.call(model.control("statistics", None), 5)
    model.close(timeout=5)
    model = bench.load(summaries=True, histograms=True)
    bench.infer(request("a"))
    answer = bench.plane.call(model.control("statistics", None), 5)
    count, _, sizes = answer["summaries"]["request"]
    assert (count, sum(sizes.values())) == (1, 1)
    assert "first_response" not in answer  # which decoupled models alone have


def test_statistics_of_failures_by_reason(bench: Bench) -> None:
    bench.load(CONFIG, max_pending_requests=1)
    assert bench.infer(request("bad")).error is not None
    with pytest.raises(InferError):
        bench.submit(request("a", 9))
    held = bench.hold()
    queued, cancel = bench.submit(request("b"))
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.submit(request("c"))
    assert bench.statistics()[2] == 1
    cancel()
    assert _error(queued).code is ErrorCode.CANCELLED
    late, _ = bench.submit(request("d", deadline=1e-9))
    bench.backend.gate.set()
    assert held.result(5).error is None
    assert _error(late).message == "Request timeout expired"
    message, failures, pending = bench.statistics()
    assert failures == {"OTHER": 2, "REJECTED": 2, "CANCELED": 1}
    assert message.inference_stats.fail.count == 5
    assert message.inference_stats.success.count == 1
    assert message.execution_count == 1  # as in Triton, one that failed for all of its requests is none
    assert bench.executed() == [["bad"], ["hold"]]
    assert pending == 0
    assert bench.model is not None and bench.model.outstanding == 0


def _error(answer: "Future[InferResponse]") -> InferError:
    error = answer.result(5).error
    assert error is not None
    return error


def test_a_backend_that_raises_counts_as_such(bench: Bench) -> None:
    bench.load()
    bench.backend.TritonBackend.instance_execute = _raise
    assert _error(bench.submit(request("a"))[0]).message == "a bad batch"
    assert bench.statistics()[1] == {"BACKEND": 1}


def _raise(self: Any, instance: Any, requests: Any) -> None:
    raise RuntimeError("a bad batch")


BAD = [
    (request("a", 9), "[request id: a] inference request batch-size must be <= 8 for 'm'"),
    (InferRequest("m", "", (), id="a"), "[request id: a] expected 1 inputs but got 0 inputs for model 'm'."),
    (request("a", outputs=(RequestedOutput("X"),)), "unexpected inference output 'X' for model 'm'"),
]


@pytest.mark.parametrize(("bad", "text"), BAD)
def test_what_the_configuration_forbids_is_refused_and_counted(
    bench: Bench, bad: InferRequest, text: str
) -> None:
    bench.load()
    with pytest.raises(InferError) as caught:
        bench.submit(bad)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith(text)
    message, failures, _ = bench.statistics()
    assert (failures, message.inference_stats.fail.count) == ({"OTHER": 1}, 1)
    assert bench.executed() == []


def test_dynamic_batching_batches_what_waits(bench: Bench) -> None:
    bench.load(CONFIG + BATCHING)
    assert bench.serve_batch.limits == (8, 1024)
    held = bench.hold()
    answers = [bench.submit(request(request_id, 3))[0] for request_id in ("a", "bad", "c")]
    bench.backend.gate.set()
    assert held.result(5).error is None
    responses = [answer.result(5) for answer in answers]
    assert [response.error is None for response in responses] == [True, False, True]
    assert bench.executed() == [["hold"], ["a", "bad"], ["c"]]
    message, failures, _ = bench.statistics()
    assert failures == {"OTHER": 1}
    assert [(b.batch_size, b.compute_infer.count) for b in message.batch_stats] == [(1, 1), (3, 1), (6, 1)]
    assert message.inference_stats.compute_infer.count == message.inference_stats.success.count == 3


def test_queue_size_of_the_configuration(bench: Bench) -> None:
    bench.load(CONFIG + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
    bench.hold()
    waiting, _ = bench.submit(request("a"))
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.submit(request("b"))
    bench.backend.gate.set()
    assert waiting.result(5).error is None


def test_queue_is_bounded_by_bytes(bench: Bench) -> None:
    bench.load(CONFIG, max_pending_bytes=10)
    bench.hold()
    bench.submit(request("a", 2))
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.submit(request("b"))


def test_optional_and_variable_inputs_batch_with_their_like(bench: Bench) -> None:
    bench.load(CONFIG.replace("dims: [ 4 ]", "dims: [ -1 ]") + BATCHING)
    bench.hold()
    widths = {"a": 2, "b": 2, "c": 3}
    tensors = {i: Tensor("INPUT0", "UINT8", (1, width), bytes(width)) for i, width in widths.items()}
    answers = [bench.submit(InferRequest("m", "", (t,), id=i))[0] for i, t in tensors.items()]
    bench.backend.gate.set()
    assert all(answer.result(5).error is None for answer in answers)
    assert bench.executed() == [["hold"], ["a", "b"], ["c"]]


def test_log_settings_come_as_a_control_call(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LogConfig] = []
    monkeypatch.setattr(served_model, "configure_logging", seen.append)
    model = bench.load()
    settings = LogConfig(log_verbose_level=2, log_info=False)
    bench.plane.call(model.control("log", msgspec.to_builtins(settings)), 5)
    assert seen == [settings]


def test_unknown_control_verb(bench: Bench) -> None:
    model = bench.load()
    with pytest.raises(InferError, match="unknown control verb 'x'"):
        bench.plane.call(model.control("x", None), 5)


WARMUP = """
model_warmup {
  name: "zeros" batch_size: 3 count: 2
  inputs { key: "INPUT0" value { data_type: TYPE_UINT8 dims: [ 4 ] zero_data: true } }
}
model_warmup {
  name: "file" batch_size: 1
  inputs { key: "INPUT0" value { data_type: TYPE_UINT8 dims: [ 4 ] input_data_file: "four" } }
}
model_warmup {
  name: "none" batch_size: 0
  inputs { key: "INPUT0" value { data_type: TYPE_UINT8 dims: [ 4 ] random_data: true } }
}
"""


def test_warm_up_in_the_thread_that_will_execute(bench: Bench) -> None:
    (bench.directory / "m" / "warmup").mkdir()
    (bench.directory / "m" / "warmup" / "four").write_bytes(b"four")
    bench.load(CONFIG + "instance_group { count: 2 }" + WARMUP)
    executions = [call[1:] for call in bench.backend.calls if call[0] == "execute"]
    for instance in ("m_0_0", "m_0_1"):
        mine = [ids for thread, ids in executions if thread == instance]
        assert mine == [["warmup zeros"] * 3, ["warmup zeros"] * 3, ["warmup file"]]
    assert bench.statistics()[0].execution_count == 0, "warm-up is nobody's request"


def test_failing_warm_up_fails_the_load(bench: Bench) -> None:
    failing = 'parameters { key: "answer" value { string_value: "error" } }'
    with pytest.raises(InferError) as caught:
        bench.load(CONFIG + failing + WARMUP)
    assert caught.value.message == "failed to run warmup sample 'zeros': a bad input; "
    assert bench.backend.calls[-3:] == [("unload", "m_0"), "model_finalize", "finalize"]


def test_missing_warm_up_data(bench: Bench) -> None:
    with pytest.raises(InferError, match="warmup sample 'file': cannot read 'four': No such file"):
        bench.load(CONFIG + WARMUP)


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = threading.active_count()
    bench = Bench(tmp_path)
    bench.load(CONFIG + "instance_group { count: 3 }")
    assert threading.active_count() == before + 4
    bench.close()
    assert threading.active_count() == before


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
    assert all(answer.result(5).error is None for answer in [held, *answers])
    assert bench.executed() == [["hold"], ["a", "b"], ["c"], ["d"]]


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


def test_queue_policy_of_the_configuration(bench: Bench) -> None:
    policy = """
    dynamic_batching {
      priority_levels: 2 default_priority_level: 2
      default_queue_policy { max_queue_size: 2 default_timeout_microseconds: 20000 }
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
        error = answers[name].result(5).error
        assert error is not None and error.message == "Request timeout expired"
    bench.backend.gate.set()
    assert held.result(5).error is None and answers["1"].result(5).error is None
    assert bench.executed() == [["hold"], ["1"]]
    assert bench.statistics()[1] == {"REJECTED": 4}


def test_ordered_responses_of_several_instances(bench: Bench) -> None:
    bench.load(CONFIG + "dynamic_batching { preserve_ordering: true } instance_group { count: 2 }")
    held = bench.hold()
    later, _ = bench.submit(request("later"))
    while ["later"] not in bench.executed():
        time.sleep(0.001)
    time.sleep(0.01)
    assert not later.done()
    bench.backend.gate.set()
    assert held.result(5).error is None and later.result(5).error is None


def test_passive_instances_are_loaded_and_never_used(bench: Bench) -> None:
    bench.load(CONFIG + 'instance_group [ { name: "idle" passive: true }, { name: "used" } ]')
    for _ in range(5):
        bench.infer(request("a"))
    assert {call[1] for call in bench.backend.calls if call[0] == "load"} == {"idle_0", "used_0"}
    assert {call[1] for call in bench.backend.calls if call[0] == "execute"} == {"used_0"}


def test_held_by_the_hook_of_triton(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "3")
    bench.load(CONFIG + BATCHING)
    answers = [bench.submit(request(name))[0] for name in "abc"]
    assert [answer.result(5).error for answer in answers] == [None] * 3
    assert bench.executed() == [["a", "b", "c"]]


def test_shapes_that_may_share_a_batch() -> None:
    def key(*inputs: str) -> ShapeKey:
        config = mc.ModelConfig(max_batch_size=8)
        for line in inputs:
            text_format.Parse(line, config.input.add())
        return ShapeKey(config)

    def of(**shapes: tuple[int, ...]) -> InferRequest:
        return InferRequest(
            "m", "", tuple(Tensor(name, "INT8", shape, b"") for name, shape in shapes.items())
        )

    ragged = 'name: "R" dims: -1 allow_ragged_batch: true'
    assert key(ragged)(of(R=(1, 3))) is None
    both = key(ragged, 'name: "V" dims: -1')
    assert both(of(R=(1, 3), V=(1, 2))) == both(of(V=(4, 2), R=(2, 9)))
    assert both(of(R=(1, 3), V=(1, 2))) != both(of(R=(1, 3), V=(1, 3)))
    optional = key('name: "A" dims: 2', 'name: "B" dims: 2 optional: true')
    assert optional(of(A=(1, 2))) != optional(of(A=(1, 2), B=(1, 2)))
    assert optional(of(B=(1, 2), A=(1, 2))) == optional(of(A=(3, 2), B=(3, 2)))


@pytest.fixture
def region() -> Iterator[Path]:
    file = Path(f"/dev/shm/nereid-served-{os.getpid()}")
    file.write_bytes(b"abcd....")
    yield file
    file.unlink()


def sharing(region: Path, request_id: str) -> InferRequest:
    """The first half of the region as input, the second as output."""
    part = RegionSlice("r", 0, 4, region.name, region.stat().st_ino)
    output = RequestedOutput("INPUT0", region=msgspec.structs.replace(part, offset=4))
    return InferRequest(
        "m", "", (Tensor("INPUT0", "UINT8", (1, 4), part),), (output,), request_id, regions=True
    )


ECHO = """
name: "m" backend: "probe" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_UINT8 dims: [ 4 ] }
output { name: "INPUT0" data_type: TYPE_UINT8 dims: [ 4 ] }
"""


def test_shared_memory_is_read_and_written_by_the_replica(bench: Bench, region: Path) -> None:
    bench.load(ECHO)
    response = bench.infer(sharing(region, "a"))
    assert (response.error, response.outputs[0].shape, response.outputs[0].data) == (None, (1, 4), b"")
    assert region.read_bytes() == b"abcdabcd"
    os.truncate(region, 2)
    with pytest.raises(InferError, match="Invalid offset \\+ byte size for shared memory region: 'r'"):
        bench.submit(sharing(region, "b"))
    statistics, _, pending = bench.statistics()
    assert (statistics.inference_stats.success.count, statistics.inference_stats.fail.count) == (1, 1)
    assert pending == 0


def test_a_cancelled_request_writes_nothing(bench: Bench, region: Path) -> None:
    bench.load(ECHO)
    answer, cancel = bench.submit(sharing(region, "hold"))
    assert bench.backend.entered.acquire(timeout=5)
    cancel()
    bench.backend.gate.set()
    answer.result(5)
    assert region.read_bytes() == b"abcd...."


PYTHON_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils
import NAME

class TritonPythonModel:
    def initialize(self, args):
        self.counter = pb_utils.MetricFamily("seen", "", pb_utils.MetricFamily.COUNTER).Metric()
    def execute(self, requests):
        self.counter.increment(len(requests))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())])
                for r in requests]
    def is_ready(self):
        return self.counter.value() == 0
"""


def test_python_model_of_its_own_environment(bench: Bench) -> None:
    folder = bench.directory / "m"
    environments.make(folder / "venv")
    (folder / "1" / "model.py").write_text(PYTHON_MODEL.replace("NAME", "only_here"))
    model = bench.load(CONFIG.replace("probe", "python"))
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()

    async def watch() -> None:
        await model.watch_readiness(told.put).start()

    bench.plane.call(watch(), 30)
    answer, _ = bench.submit(request("a"))
    assert answer.result(30).error is None
    custom = bench.plane.call(model.control("statistics", None), 30)["custom"]
    assert custom == [["seen", "", "counter", [[{}, 1.0, 0, [], []]]]]
    assert told.get(timeout=30) is False  # the model said no after its first request
    model.close(timeout=30)
    bench.model = None


def test_python_model_whose_packages_nobody_installed(bench: Bench) -> None:
    folder = bench.directory / "m"
    (folder / "requirements.txt").write_text("no-such-package\n")
    (folder / "1" / "model.py").write_text(PYTHON_MODEL.replace("NAME", "no_such_package"))
    with pytest.raises(
        InferError, match="--backend-config=python,requirements=install gives each such model"
    ):
        bench.load(CONFIG.replace("probe", "python"))
