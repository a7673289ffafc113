"""The tap counts what models with a reference answer, and touches no other."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from app.core.drift.building import side
from app.core.drift.counts import DriftAnswer, DriftReport, VersionCounts
from app.core.drift.reference import Reference
from app.core.drift.spec import DriftSpec, InputRule
from app.core.errors import ErrorCode, InferError, unavailable
from app.core.inference import Call, Sink, Target
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.drift.counter import RowCounter
from app.drift.reporter import DriftReporter
from app.drift.tap import MOST_BYTES, CountedTarget, DriftTap
from tests.unit.app.drift_fakes import known, reference
from tests.unit.app.routing_fakes import entry

REFERENCE = reference(outputs="OUT")
ROW = (Tensor.from_array("IN", np.ones((1, 2), np.float32)),)
ANSWER = InferResponse("m", "1", (Tensor.from_array("OUT", np.array([[0.2, 0.3, 0.5]])),))


class Route:
    """Answers at once with what it is told."""

    available = True

    def __init__(self, *answers: InferResponse) -> None:
        self.answers = answers or (ANSWER,)
        self.requests: list[InferRequest] = []

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        self.requests.append(request)
        for answer in self.answers:
            sink(answer)
        return None  # type: ignore[return-value]


def send(target: Target, inputs: tuple[Tensor, ...] = ROW, **fields: Any) -> list[InferResponse]:
    """Send a request; return its responses."""
    received: list[InferResponse] = []
    target.submit(InferRequest("m", "", inputs, **fields), received.append)
    return received


def followed(**fields: Any) -> tuple[DriftTap, Callable[..., Target]]:
    """Return a tap with a reference of version 1, and what makes targets."""
    tap = DriftTap()
    tap.follow([known(REFERENCE)])
    return tap, lambda route, **more: tap(entry("m", **{**fields, **more}), route)


def test_a_model_that_is_not_watched_keeps_its_route() -> None:
    tap, _ = followed()
    route = Route()
    assert tap(entry("other"), route) is route
    assert tap(entry("m", 2), route) is route
    assert tap(entry("m", drift=DriftSpec(rows_per_second=0)), route) is route


def test_answered_requests_are_counted_with_their_outputs() -> None:
    tap, target = followed()
    watched = target(Route())
    for _ in range(3):
        assert send(watched) == [ANSWER]
    (counts,) = tap.take()
    assert (counts.model, counts.version, counts.counts.rows) == ("m", 1, 3)
    assert [sum(cells) for cells in counts.counts.cells] == [3] * 5
    assert list(tap.take()) == []


def test_failed_requests_are_not_counted() -> None:
    tap, target = followed()
    send(target(Route(failed(unavailable("gone")))))
    assert list(tap.take()) == []


def test_a_fault_of_counting_ends_that_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tap, target = followed()
    monkeypatch.setattr(RowCounter, "add", lambda *_: 1 / 0)
    watched = target(Route())
    assert [send(watched) for _ in range(3)] == [[ANSWER]] * 3
    assert caplog.messages == ["model 'm' is not watched any more"] and tap.known == []


def test_an_answer_before_an_empty_final_one_is_counted_once() -> None:
    tap, target = followed()
    answers = msgspec.structs.replace(ANSWER, final=False), InferResponse("m", "1")
    assert send(target(Route(*answers))) == [*answers]
    (counts,) = tap.take()
    assert [sum(cells) for cells in counts.counts.cells] == [1] * 5


def test_a_request_is_counted_for_the_version_that_answered() -> None:
    tap = DriftTap()
    tap.follow([known(REFERENCE), known(REFERENCE, version=2, digest="e")])
    split = entry("m", rival=entry("m", 2))
    send(tap(split, Route(msgspec.structs.replace(ANSWER, model_version="2"))))
    (counts,) = tap.take()
    assert (counts.version, counts.reference) == (2, "e")


def test_inputs_in_flight_are_bounded() -> None:
    _, target = followed()
    wide = (Tensor("IN", "FP32", (1, 2), bytes(MOST_BYTES // 2)),)

    class Silent(Route):
        def submit(self, request: InferRequest, sink: Sink) -> Call:
            self.sinks.append(sink)
            return None  # type: ignore[return-value]

        sinks: list[Sink] = []

    route = Silent()
    watched = target(route)
    for _ in range(4):
        send(watched, wide)
    assert [hasattr(sink, "func") for sink in route.sinks] == [True, True, False, False]
    for sink in route.sinks[:2]:
        sink(ANSWER)
    send(watched, wide)
    assert hasattr(route.sinks[-1], "func")


def test_what_could_not_be_sent_is_not_held() -> None:
    _, target = followed()

    class Refusing(Route):
        def submit(self, request: InferRequest, sink: Sink) -> Call:
            raise unavailable("not ready")

    for _ in range(100):
        with pytest.raises(InferError):
            send(target(Refusing()), (Tensor("IN", "FP32", (1, 2), bytes(MOST_BYTES)),))


def test_a_new_reference_begins_a_new_count_and_a_known_one_goes_on() -> None:
    tap, target = followed()
    send(target(Route()))
    assert not tap.follow([msgspec.structs.replace(known(REFERENCE), reference=None)])
    assert [each.counts.rows for each in tap.take()] == [1]
    send(target(Route()))
    assert tap.follow([known(REFERENCE, digest="new")]) and list(tap.take()) == []
    assert tap.follow([]) and tap.known == []
    assert not isinstance(target(Route()), CountedTarget)


async def test_a_report_that_did_not_arrive_is_sent_again() -> None:
    tap, target = followed()
    reports: list[DriftReport] = []
    changes: list[str] = []
    answers: list[Any] = [unavailable("away"), DriftAnswer((known(REFERENCE, digest="new"),)), DriftAnswer()]

    async def send_report(report: DriftReport) -> DriftAnswer:
        reports.append(report)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, DriftAnswer)
        return answer

    reporter = DriftReporter(tap, send_report, "me", lambda: changes.append("changed"))
    watched = target(Route())
    send(watched)
    with pytest.raises(InferError):
        await reporter.report()
    send(watched)
    await reporter.report()
    assert [report.number for report in reports] == [1, 1] and reports[0] is reports[1]
    assert reports[0].versions == [VersionCounts("m", 1, "d", reports[0].versions[0].counts)]
    assert (reports[0].known, changes) == (["d"], ["changed"])
    await reporter.report()
    assert (reports[2].number, reports[2].known, changes) == (2, ["new"], ["changed"] * 2)


def rules(**inputs: InputRule) -> DriftSpec:
    return DriftSpec(inputs=inputs)


def values(*numbers: Any) -> tuple[Tensor, ...]:
    return (Tensor.from_array("IN", np.array([numbers], np.float32)),)


@pytest.mark.parametrize(
    ("rule", "inputs", "text"),
    [
        (InputRule(nan="reject"), values(1, np.nan), "has NaN at [0,1]"),
        (InputRule((0, 1), "reject"), values(0.5, 1.5), "has 1.5 at [0,1], outside of 0 to 1"),
        (InputRule((0, 1), "reject"), values(-np.inf, 0), "has -inf at [0,0], outside of 0 to 1"),
        (
            InputRule(values=(1, 2), new="reject"),
            values(1, 3),
            "has '3' at [0,1], which is not a known value",
        ),
        (
            InputRule(values=("a",), new="reject"),
            (Tensor.from_array("IN", np.array([["a", "b"]], object)),),
            "has 'b' at [0,1], which is not a known value",
        ),
    ],
)
def test_a_value_is_rejected_with_its_place(rule: InputRule, inputs: tuple[Tensor, ...], text: str) -> None:
    tap, target = followed(drift=rules(IN=rule))
    route = Route()
    watched = target(route)
    with pytest.raises(InferError) as caught:
        send(watched, inputs, id="7")
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == f"[request id: 7] input 'IN' for model 'm' {text}"
    assert route.requests == [] and sum(tap.tally.counts.values()) == 1


def test_right_values_pass() -> None:
    _, target = followed(drift=rules(IN=InputRule((0, 1), "reject", "reject")))
    assert send(target(Route()), values(0, 1)) == [ANSWER]


def test_a_tagged_request_is_answered_with_what_was_found() -> None:
    _, target = followed(drift=rules(IN=InputRule((0, 1), "tag", "tag")))
    (answer,) = send(target(Route()), values(np.nan, 2))
    assert answer.parameters == {"nereid_data_quality": "IN:nan,IN:range"}


def test_a_logged_request_is_answered_as_any_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    tap, target = followed(drift=rules(IN=InputRule((0, 1))))
    watched = target(Route())
    assert [send(watched, values(2, 2)) for _ in range(5)] == [[ANSWER]] * 5
    tap.tally.tell()
    tap.tally.tell()
    assert caplog.messages == ["model 'm': input 'IN' of 5 requests: range (log)"]


def test_new_categories_are_those_that_the_reference_does_not_know() -> None:
    rule = rules(IN=InputRule(new="tag"))
    tap, target = followed(drift=rule)
    assert send(target(Route()), values(3, 3))[0].parameters == {}  # numbers are no categories
    labels = reference()
    inputs, _ = side({"IN": [np.array([[b"a"], [b"b"]] * 500, object)]}, 1.0, "rows")
    tap.follow([known(Reference(inputs, labels.outputs), digest="labels")])
    new = (Tensor.from_array("IN", np.array([["c"]], object)),)
    assert send(target(Route()), new)[0].parameters == {"nereid_data_quality": "IN:new"}


def test_bytes_that_fit_no_shape_are_left_to_the_models_check() -> None:
    _, target = followed(drift=rules(IN=InputRule((0, 1), "reject", "reject")))
    assert send(target(Route()), (Tensor("IN", "FP32", (1, 2), b"odd"),)) == [ANSWER]
