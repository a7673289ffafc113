"""The control verbs of a replica."""

import msgspec
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.observability.log import LogConfig
from deployments.replica import control
from tests.unit.deployments.served_model_bench import Bench, request


def test_statistics_have_summaries_only_where_enabled(bench: Bench) -> None:
    model = bench.load()
    bench.infer(request("a"))
    assert bench.report().summaries == {}
    model.close(timeout=5)
    bench.load(summaries=True, histograms=True)
    bench.infer(request("a"))
    report = bench.report()
    summary = report.summaries["request"]
    assert (summary.count, sum(summary.sizes.values())) == (1, 1)
    assert report.first_response is None  # only decoupled models have it


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
