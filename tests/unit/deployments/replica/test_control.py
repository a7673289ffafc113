"""The control verbs of a replica."""

import time

import msgspec
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.observability.log import LogConfig
from app.core.sequences import END_SEQUENCES
from deployments.replica import control
from tests.unit.deployments.served_model_bench import Bench, request


def test_statistics_have_summaries_only_where_enabled(bench: Bench) -> None:
    model = bench.load()
    bench.infer(request("a"))
    assert bench.report().summaries == {}
    model.close(timeout=60)
    bench.load(summaries=True, histograms=True)
    bench.infer(request("a"))
    report = bench.report()
    summary = report.summaries["request"]
    assert (summary.count, sum(summary.sizes.values())) == (1, 1)
    assert report.first_response is not None and sum(report.first_response.counts) == 1


def test_statistics_tell_of_an_overloaded_model(bench: Bench) -> None:
    model = bench.load(max_queue_s=10)
    for _ in range(2):
        bench.infer(request("a"))
    model.scheduler.admission.execution_ns.value = 100e9
    held = bench.hold()
    queued, _ = bench.submit(request("b"))
    with pytest.raises(InferError, match="overloaded"):
        bench.submit(request("c"))
    report = bench.report()
    assert report.refusals == {"max_queue": 1} and report.failures == {"REJECTED": 1}
    assert report.expected_wait_ns > 10e9
    bench.backend.gate.set()
    assert held.result(60).failure is None and queued.result(60).failure is None


def test_replica_learns_from_clients_that_leave(bench: Bench) -> None:
    model = bench.load()
    admission = model.scheduler.admission
    held = bench.hold()
    waiting = [bench.submit(request(str(number))) for number in range(20)]
    admission.clock = lambda: time.monotonic_ns() + 50_000_000
    for answer, leave in waiting:
        leave()
        assert answer.result(60).failure is not None
    assert not admission.is_learned, "all at once: it was one client"
    answer, leave = bench.submit(request("later"))
    admission.clock = lambda: time.monotonic_ns() + 3_000_000_000
    leave()
    assert admission.is_learned
    assert bench.report().pending == 0
    bench.backend.gate.set()
    assert held.result(60).failure is None and bench.executed() == [["hold"]]


def test_log_verb_configures_logging(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[LogConfig] = []
    monkeypatch.setattr(control, "configure_logging", seen.append)
    bench.load()
    settings = LogConfig(log_verbose_level=2, log_info=False)
    bench.control("log", msgspec.to_builtins(settings))
    assert seen == [settings]


def test_unknown_verb_is_refused(bench: Bench) -> None:
    bench.load()
    with pytest.raises(InferError, match="unknown control verb 'x'") as caught:
        bench.control("x")
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_sequences_of_a_model_without_any_are_none(bench: Bench) -> None:
    bench.load()
    bench.control(END_SEQUENCES, [1, "x"])
    assert bench.report().pending == 0
