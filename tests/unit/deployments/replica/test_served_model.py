"""A served model over the tests' backend: statistics, failures, shared memory."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.errors import ErrorCode, Failure, InferError
from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor
from tests.unit.deployments.served_model_bench import CONFIG, Bench, request

EARLY = threading.Event()
"""Lets `_answer_early` end."""

pytestmark = pytest.mark.usefixtures("data_plane")


def test_model_loads_serves_and_unloads(bench: Bench) -> None:
    settings = {"": {"all": "1", "own": "0"}, "probe": {"own": "1"}, "other": {"x": "1"}}
    model = bench.load(backend_config=settings)
    response = bench.infer(request("a", 2))
    assert (response.model_name, response.model_version, response.id) == ("m", "1", "a")
    assert bytes(response.outputs[0].data) == bytes(range(4)) * 2
    assert response.parameters == {"seen": 1} and response.final and response.failure is None
    assert model.healthy and model.outstanding == 0
    model.close(timeout=60)
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


def test_successes_are_counted(bench: Bench) -> None:
    bench.load()
    for rows in (1, 3, 3):
        bench.infer(request("a", rows))
    stats = bench.report()
    assert (stats.inference_count, stats.execution_count) == (7, 3)
    assert abs(stats.last_inference_ns - time.time_ns()) < 60e9
    counts = (stats.success, stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
    assert [duration.count for duration in counts] == [3] * 5
    assert (stats.fail.count, stats.cache_hit.count, stats.cache_miss.count) == (0, 0, 0)
    assert 0 < stats.compute_infer.ns <= stats.success.ns
    assert 0 < stats.queue.ns < stats.success.ns
    assert {size: batch.compute_infer.count for size, batch in stats.batches.items()} == {1: 1, 3: 2}
    assert (stats.failures, stats.pending) == ({}, 0)


def test_traced_request_has_timestamps(bench: Bench) -> None:
    bench.load()
    assert bench.infer(request("plain")).timestamps is None
    before = time.monotonic_ns()
    times = bench.infer(request("traced", trace="-")).timestamps
    assert times is not None
    *in_order, activities = (getattr(times, name) for name in times.__struct_fields__)
    assert activities == ()
    assert in_order == sorted(in_order)
    assert before <= times.request_start <= times.request_end <= time.monotonic_ns()


def test_request_that_is_answered_while_its_execution_goes_on_has_all_timestamps(bench: Bench) -> None:
    bench.load()
    bench.backend.TritonBackend.instance_execute = _answer_early
    times = bench.infer(request("early", trace="-")).timestamps
    EARLY.set()
    assert times is not None
    *in_order, _ = (getattr(times, name) for name in times.__struct_fields__)
    assert in_order == sorted(in_order)


def _answer_early(self: Any, instance: Any, requests: Any) -> None:
    """Respond from another thread, and execute until the test has got it."""
    answer = InferResponse(outputs=requests[0].infer.inputs)
    threading.Thread(target=requests[0].deliver, args=(answer,)).start()
    assert EARLY.wait(60)


def test_failures_are_counted_by_reason(bench: Bench) -> None:
    bench.load(CONFIG, max_pending_requests=1)
    assert bench.infer(request("bad")).failure is not None
    with pytest.raises(InferError):
        bench.submit(request("a", 9))
    held = bench.hold()
    queued, cancel = bench.submit(request("b"))
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        bench.submit(request("c"))
    assert bench.report().pending == 1
    cancel()
    assert _error(queued).code is ErrorCode.CANCELLED
    late, _ = bench.submit(request("d", deadline=1e-9))
    bench.backend.gate.set()
    assert held.result(60).failure is None
    assert _error(late).message == "Request timeout expired"
    report = bench.report()
    assert report.failures == {"OTHER": 1, "REJECTED": 2, "CANCELED": 1}
    assert report.fail.count == 4
    assert report.success.count == 1
    assert report.execution_count == 1  # as in Triton, one that failed for all of its requests is none
    assert bench.executed() == [["bad"], ["hold"]]
    assert report.pending == 0
    assert bench.model is not None and bench.model.outstanding == 0


def _error(answer: "Future[InferResponse]") -> Failure:
    error = answer.result(60).failure
    assert error is not None
    return error


def test_backend_exception_is_counted_as_backend_failure(bench: Bench) -> None:
    bench.load()
    bench.backend.TritonBackend.instance_execute = _raise
    assert _error(bench.submit(request("a"))[0]).message == "a bad batch"
    assert bench.report().failures == {"BACKEND": 1}


def _raise(self: Any, instance: Any, requests: Any) -> None:
    raise RuntimeError("a bad batch")


BAD = [
    (request("a", 9), "[request id: a] inference request batch-size must be <= 8 for 'm'"),
    (InferRequest("m", "", (), id="a"), "[request id: a] expected 1 inputs but got 0 inputs for model 'm'."),
    (request("a", outputs=(RequestedOutput("X"),)), "unexpected inference output 'X' for model 'm'"),
]


@pytest.mark.parametrize(("bad", "text"), BAD)
def test_invalid_request_is_refused_and_not_counted_as_failure(
    bench: Bench, bad: InferRequest, text: str
) -> None:
    bench.load()
    with pytest.raises(InferError) as caught:
        bench.submit(bad)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith(text)
    report = bench.report()
    assert (report.failures, report.fail.count) == ({}, 0)
    assert bench.executed() == []


def _threads() -> set[threading.Thread]:
    """Return those that run, without timers: the process's pool of shared memory sets one again and again."""
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading.Timer)}


def test_close_ends_all_threads(tmp_path: Path) -> None:
    before = _threads()  # of which some may end meanwhile
    bench = Bench(tmp_path)
    bench.load(CONFIG + "instance_group { count: 3 }")
    assert len(_threads() - before) == 4
    bench.close()
    assert not _threads() - before


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
    assert (response.failure, response.outputs[0].shape, response.outputs[0].data) == (None, (1, 4), b"")
    assert region.read_bytes() == b"abcdabcd"
    os.truncate(region, 2)
    with pytest.raises(InferError, match="Invalid offset \\+ byte size for shared memory region: 'r'"):
        bench.submit(sharing(region, "b"))
    report = bench.report()
    assert (report.success.count, report.fail.count) == (1, 0)
    assert report.pending == 0


def test_cancelled_request_writes_nothing_to_shared_memory(bench: Bench, region: Path) -> None:
    bench.load(ECHO)
    answer, cancel = bench.submit(sharing(region, "hold"))
    assert bench.backend.entered.acquire(timeout=60)
    cancel()
    bench.backend.gate.set()
    answer.result(60)
    assert region.read_bytes() == b"abcd...."
