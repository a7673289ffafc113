"""The report of a replica: its wire form, and how several are combined."""

from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec
import pytest

from app.core.observability.latencies import Histogram, Summary
from app.core.observability.statistics import (
    BatchDurations,
    CustomFamily,
    CustomSample,
    Duration,
    ReplicaReport,
    ResponseDurations,
    merge,
)

DURATIONS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


def full(factor: int) -> ReplicaReport:
    """A report whose every field differs from its default."""
    durations = {name: Duration(n * factor, n * factor * 7) for n, name in enumerate(DURATIONS, 1)}
    return ReplicaReport(
        last_inference_ns=100 * factor,
        inference_count=2 * factor,
        execution_count=factor,
        **durations,
        failures={"OTHER": factor, f"R{factor}": 1},
        releases={"full": factor},
        refusals={"deadline": factor},
        batches={factor: BatchDurations(), 4: BatchDurations(*[Duration(factor, factor)] * 3)},
        pending=factor,
        queue_age_ns=factor,
        expected_wait_ns=factor,
        has_cache=factor > 1,
        cache_failures=factor,
        restarts=factor,
        durations={"queue": Histogram((1.0,), [factor, 1], 0.25 * factor)},
        fine_durations={7: factor},
        summaries={"queue": Summary(factor, 10 * factor, {-1: factor, factor: 1})},
        first_response=Histogram((1.0, 2.5), [factor, 0, 1], 0.5 * factor),
        custom=[CustomFamily("f", "text", "counter", [CustomSample({"a": "b"}, 1.0, 0, [], [])])],
        responses={0: ResponseDurations(*[Duration(factor, factor)] * 6), factor: ResponseDurations()},
        processor_s=0.5 * factor,
        memory=7 * factor,
    )


def test_every_field_survives_the_wire() -> None:
    report = full(10)
    zero = ReplicaReport()
    assert [name for name in report.__struct_fields__ if getattr(report, name) == getattr(zero, name)] == []
    answer = msgspec.msgpack.decode(msgspec.msgpack.encode(report))
    assert msgspec.convert(answer, ReplicaReport) == report


def test_fields_of_another_release_are_ignored() -> None:
    report = msgspec.convert({"success": {"count": 1, "ns": 2}, "new": 1}, ReplicaReport)
    assert report == ReplicaReport(success=Duration(1, 2))


def test_every_counter_is_added() -> None:
    parts = [full(1), full(10)]
    total = merge(parts)
    assert total.last_inference_ns == 1000, "the latest, not the sum"
    assert (total.inference_count, total.execution_count, total.pending) == (22, 11, 11)
    for number, name in enumerate(DURATIONS, 1):
        assert getattr(total, name) == Duration(number * 11, number * 77), name
    assert (total.failures, total.releases) == ({"OTHER": 11, "R1": 1, "R10": 1}, {"full": 11})
    assert total.batches == {
        1: BatchDurations(),
        4: BatchDurations(*[Duration(11, 11)] * 3),
        10: BatchDurations(),
    }
    assert (total.queue_age_ns, total.has_cache) == (10, True)
    assert total.summaries == {"queue": Summary(11, 110, {-1: 11, 1: 1, 10: 1})}
    assert total.first_response == Histogram((1.0, 2.5), [11, 0, 2], 5.5)
    assert total.restarts == 11
    assert total.durations == {"queue": Histogram((1.0,), [11, 2], 2.75)}
    assert total.fine_durations == {7: 11}
    assert len(total.custom) == 2
    both = ResponseDurations(*[Duration(11, 11)] * 6)
    assert total.responses == {0: both, 1: ResponseDurations(), 10: ResponseDurations()}
    assert parts == [full(1), full(10)], "merging changes its arguments"


def test_no_reports_are_zeros() -> None:
    assert merge([]) == ReplicaReport()


def test_a_histogram_that_only_some_keep_is_kept() -> None:
    histogram = Histogram((1.0,), [1, 2], 3.0)
    for parts in ([None, histogram], [histogram, None]):
        assert merge(ReplicaReport(first_response=part) for part in parts).first_response == histogram


@pytest.mark.parametrize("name", ReplicaReport.__struct_fields__)
def test_every_field_declares_its_reducer(name: str) -> None:
    hint = get_type_hints(ReplicaReport, include_extras=True)[name]
    assert get_origin(hint) is Annotated and callable(get_args(hint)[1])


@pytest.mark.parametrize(("name", "kind"), [("bad name", "counter"), ("1", "gauge"), ("ok", "summary")])
def test_custom_families_that_would_break_the_page_are_refused(name: str, kind: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([name, "", kind, []], CustomFamily)
