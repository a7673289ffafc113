"""Instances added and removed while a model serves, and instances with a rate limiter."""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.rate_limit import Demand
from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse
from app.transport.loops.thread import LoopThread
from deployments.rate_limiting.client import Permits, RateLimiter
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from deployments.spec import UPDATE
from tests.unit.deployments.served_model_bench import BATCHING, CONFIG, Bench, request
from tests.waiting import block_until, let_run

SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 }\n"


def group(count: int = 1, more: str = "") -> str:
    return f'instance_group [ {{ name: "g" count: {count} kind: KIND_CPU {more} }} ]\n'


LIMITED = 'rate_limiter { resources [ { name: "r" global: true count: 1 } ] }'


@pytest.fixture
def sockets() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="nereid-test-")
    yield directory
    shutil.rmtree(directory)


def update(bench: Bench, config: str) -> None:
    """Update the instances as the manager does, by a control call."""
    asked = text_format.Parse(config, mc.ModelConfig()).SerializeToString()
    bench.control(UPDATE, asked)


def calls(bench: Bench, what: str) -> list[str]:
    return [call[1] for call in bench.backend.calls if call[0] == what]


def count(model: ServedModel | None) -> int:
    assert model is not None
    return int(model.config.instance_group[0].count)


def test_added_instance_executes(bench: Bench) -> None:
    bench.load(CONFIG + group(1))
    held = bench.hold()
    waiting, _ = bench.submit(request("a"))
    update(bench, CONFIG + group(2))
    assert waiting.result(60).failure is None, "the new instance executes it, the old one is busy"
    assert not held.done() and count(bench.model) == 2
    assert calls(bench, "load") == ["g_0", "g_1"] and calls(bench, "unload") == []
    bench.backend.gate.set()
    assert held.result(60).failure is None


def test_removed_instance_finishes_its_requests(bench: Bench) -> None:
    bench.load(CONFIG + group(2))
    held = [bench.hold(), bench.hold()]
    update(bench, CONFIG + group(1))
    assert calls(bench, "unload") == []
    late, _ = bench.submit(request("late"))
    bench.backend.gate.set()
    assert [answer.result(60).failure for answer in (*held, late)] == [None] * 3
    block_until(lambda: calls(bench, "unload") == ["g_1"])
    assert bench.model is not None and bench.model.healthy
    assert {call[1] for call in bench.backend.calls if call[:1] == ("execute",) and "late" in call[2]} == {
        "g_0"
    }


def test_no_request_is_lost_while_all_instances_change(bench: Bench) -> None:
    bench.load(CONFIG + BATCHING + group(2))
    answers: list[Future[InferResponse]] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            answers.append(bench.submit(request(f"r{len(answers)}"))[0])
            time.sleep(0.0005)  # a steady load: no condition to wait for

    client = threading.Thread(target=ask)
    client.start()
    for number in range(6):
        before = len(answers)
        block_until(lambda before=before: len(answers) > before)  # type: ignore[misc]
        kind = group(2).replace("KIND_CPU", "KIND_MODEL" if number % 2 == 0 else "KIND_CPU")
        update(bench, CONFIG + BATCHING + kind)
    done.set()
    client.join()
    assert [answer.result(60).failure for answer in answers] == [None] * len(answers)
    block_until(lambda: len(calls(bench, "unload")) == 12)
    assert len(calls(bench, "load")) == 14


PREFERS_TWO = """
    @classmethod
    def preferred_groups(cls, config, auto_complete):
        return [mc.ModelInstanceGroup(kind="KIND_CPU", count=2)]
"""


def test_backend_tells_how_many_instances_a_group_without_count_has(bench: Bench) -> None:
    with (bench.directory / "backends" / "probe" / "backend.py").open("a") as file:
        file.write(PREFERS_TWO)
    bench.load(CONFIG)
    assert calls(bench, "load") == ["m_0", "m_1"]
    update(bench, CONFIG + group(1))
    assert count(bench.model) == 1
    update(bench, CONFIG)
    assert count(bench.model) == 2
    update(bench, CONFIG + "instance_group { kind: KIND_MODEL }")
    assert count(bench.model) == 1


def test_failed_new_instance_changes_nothing(bench: Bench) -> None:
    breaks = 'parameters { key: "break" value { string_value: "2" } }\n'
    model = bench.load(CONFIG + breaks + group(1))
    with pytest.raises(InferError, match="the weights are unreadable"):
        update(bench, CONFIG + breaks + group(3))
    assert count(model) == 1 and model.healthy
    assert bench.infer(request("a")).failure is None
    assert calls(bench, "unload") == ["g_1"], "the one that loaded"


def test_update_with_an_invalid_configuration_is_refused(bench: Bench) -> None:
    model = bench.load(CONFIG + group(1))
    with pytest.raises(InferError) as caught:
        update(bench, CONFIG + group(1, "gpus: 0"))
    assert (
        caught.value.message == "instance group g of model m has kind KIND_CPU but specifies one or more GPUs"
    )
    assert model.instances.declared == bench.spec(CONFIG + group(1)).config


def test_removed_instance_finishes_its_sequences(bench: Bench) -> None:
    config = CONFIG.replace("max_batch_size: 8", "max_batch_size: 1") + SEQUENCES
    bench.load(config + group(2))

    def step(sequence: int, **fields: bool) -> None:
        assert bench.infer(request(f"s{sequence}", sequence_id=sequence, **fields)).failure is None

    step(1, sequence_start=True)
    step(2, sequence_start=True)
    update(bench, config + group(1))
    for _ in range(3):
        step(1)
        step(2)
    waiting, _ = bench.submit(request("s3", sequence_id=3, sequence_start=True))
    assert calls(bench, "unload") == [] and not waiting.done()
    step(2, sequence_end=True)
    block_until(lambda: calls(bench, "unload") == ["g_1"])
    assert not waiting.done(), "the slot of the removed instance is not used"
    step(1, sequence_end=True)
    assert waiting.result(60).failure is None


def test_host_policy_sets_affinity(bench: Bench) -> None:
    core = min(os.sched_getaffinity(0))
    policies = {"mine": {"cpu-cores": f"{core}-{core}", "key": "v"}, "cpu": {"cpu-cores": "x-y"}}
    bench.load(CONFIG + group(1, 'host_policy: "mine"'), host_policies=policies)
    (thread,) = [each for each in threading.enumerate() if each.name == "g_0"]
    assert thread.native_id is not None and os.sched_getaffinity(thread.native_id) == {core}
    assert bench.model is not None
    (instance,) = bench.model.instances.instances
    assert instance.host_policy == policies["mine"]
    with pytest.raises(InferError, match="Parsing 'cpu-cores' value: Can't parse 'x' to integer"):
        update(bench, CONFIG + group(1))
    assert bench.infer(request("a")).failure is None


class Other:
    """Another replica of the node that needs the resource, on a loop of its own."""

    def __init__(self, bench: Bench, config: str, sockets: str) -> None:
        self.plane = LoopThread("other-replica")
        spec = bench.spec(config, socket_directory=sockets, rate_limits={})
        group = mc.ModelConfig.FromString(spec.config).instance_group[0]
        demand = Demand.from_group(group, 0)
        assert demand is not None

        async def join() -> tuple[RateLimiter, Permits]:
            limiter = RateLimiter(spec.server.placement.socket_directory, spec.key, {})
            return limiter, (await limiter.register({0: demand}))[0]

        self.limiter, self.permits = self.plane.call(join(), 60)

    def acquire(self) -> None:
        acquired = threading.Event()
        self.plane.loop.call_soon_threadsafe(self.permits.acquire, acquired.set)
        assert acquired.wait(60)

    def release(self) -> None:
        self.plane.loop.call_soon_threadsafe(self.permits.release)

    def close(self) -> None:
        self.plane.call(self.limiter.close(), 60)
        self.plane.stop()


@pytest.fixture
def limited(bench: Bench, sockets: str) -> Iterator[Other]:
    """A model whose executions need the resource, and another replica that needs it too."""
    config = CONFIG + BATCHING + group(2, LIMITED)
    bench.load(config, socket_directory=sockets, rate_limits={})
    other = Other(bench, config, sockets)
    yield other
    other.close()


def test_executions_wait_for_the_resource(bench: Bench, limited: Other) -> None:
    assert bench.infer(request("a")).failure is None
    limited.acquire()
    waiting = [bench.submit(request(f"w{number}"))[0] for number in range(3)]
    bench.plane.call(let_run(), 60)
    assert bench.executed() == [["a"]]
    limited.release()
    assert [answer.result(30).failure for answer in waiting] == [None] * 3
    limited.acquire()


def test_batch_that_waits_for_the_resource_takes_what_is_queued(bench: Bench, limited: Other) -> None:
    limited.acquire()
    waiting = [bench.submit(request(f"w{number}"))[0] for number in range(5)]
    bench.plane.call(let_run(), 60)
    limited.release()
    assert [answer.result(30).failure for answer in waiting] == [None] * 5
    assert bench.executed() == [["w0", "w2", "w3", "w4"], ["w1"]]
    assert bench.report().batches.keys() == {1, 4}


def test_instances_of_one_model_share_the_resource(bench: Bench, limited: Other) -> None:
    held = bench.hold()
    other, _ = bench.submit(request("other"))
    bench.plane.call(let_run(), 60)
    assert bench.executed() == [["hold"]], "a second instance is free, the resource is not"
    bench.backend.gate.set()
    assert (held.result(30).failure, other.result(30).failure) == (None, None)


def test_cancelled_request_stops_waiting(bench: Bench, limited: Other) -> None:
    limited.acquire()
    waiting, cancel = bench.submit(request("a"))
    cancel()
    error = waiting.result(30).failure
    assert error is not None and error.code is ErrorCode.CANCELLED
    limited.release()
    limited.acquire()
    limited.release()
    assert bench.infer(request("b")).failure is None
    assert bench.executed() == [["b"]]


def test_wait_for_a_permit_counts_as_queueing(bench: Bench, limited: Other) -> None:
    limited.acquire()
    began = time.monotonic_ns()
    waiting, _ = bench.submit(request("a"))
    time.sleep(0.05)  # the time that has to count
    limited.release()
    waiting.result(30)
    stats, took = bench.report(), time.monotonic_ns() - began
    assert 50_000_000 <= stats.queue.ns <= took - stats.compute_infer.ns, "it counts as one of both"


def test_warm_up_waits_for_the_resource(bench: Bench, limited: Other, sockets: str) -> None:
    warm_up = """model_warmup { name: "w" batch_size: 1 inputs {
        key: "INPUT0" value { data_type: TYPE_UINT8 dims: [ 4 ] zero_data: true } } }
    """
    limited.acquire()
    spec = bench.spec(CONFIG + group(1, LIMITED) + warm_up, socket_directory=sockets, rate_limits={})
    loaded: Future[ServedModel] = Future()
    load = threading.Thread(
        target=lambda: loaded.set_result(load_model(spec, bench.plane, bench.serve_batch))
    )
    load.start()
    block_until(lambda: len(calls(bench, "load")) == 3)
    bench.plane.call(let_run(), 60)
    assert not loaded.done() and bench.executed() == []
    limited.release()
    load.join(60)
    loaded.result(0).close(timeout=60)
    assert len(bench.executed()) == 1
    limited.acquire()


def test_removed_instance_requests_no_permit(bench: Bench, limited: Other) -> None:
    config = CONFIG + BATCHING + group(1)
    update(bench, config)
    block_until(lambda: len(calls(bench, "unload")) == 2)
    limited.acquire()
    assert bench.infer(request("a")).failure is None


def test_load_with_unsatisfiable_resources_fails(bench: Bench, sockets: str) -> None:
    with pytest.raises(InferError, match='Resource count for "r" is limited to 0'):
        bench.load(CONFIG + group(1, LIMITED), socket_directory=sockets, rate_limits={-1: {"something": 1}})
    assert calls(bench, "load") == []


def test_resources_are_ignored_without_a_rate_limiter(bench: Bench) -> None:
    bench.load(CONFIG + group(1, LIMITED))
    assert bench.infer(request("a")).failure is None
