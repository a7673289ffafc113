"""The waiting room: one demand for all that wait, limits, deadlines, failures and cancellation."""

import asyncio
from time import monotonic
from typing import Any

import msgspec
import pytest

from app.core.errors import ErrorCode, InferError, unavailable
from app.core.inference import Sink as SinkFunction
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.routing import waiting_room
from app.routing.table import IDLE, ModelState, VersionEntry
from app.routing.waiting_room import WaitingLimits, WaitingRoom
from tests.unit.app.routing.conftest import Sink, request
from tests.unit.app.routing_fakes import FakeCall
from tests.unit.composed import Composed
from tests.waiting import let_run, until

IDLE_ENTRY = VersionEntry("m", 1, ModelState.READY, IDLE)
LOADED = VersionEntry("m", 1, ModelState.READY, application="m:1")


class FakeModels(Composed):
    """A router: `replicas` says whether a replica is connected when it is asked for."""

    def __init__(self) -> None:
        self.route(LOADED)
        self.replicas = [True]
        self.sent: list[InferRequest] = []
        self.calls: list[FakeCall] = []
        self.refusal: Exception | None = None

    def route(self, entry: VersionEntry) -> None:
        self.entry = entry
        entry.compose_by(self)

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        return self.entry

    def submit(self, entry: VersionEntry, request: InferRequest, sink: SinkFunction) -> FakeCall:
        if self.refusal is not None:
            raise self.refusal
        assert entry is self.entry
        self.sent.append(request)
        sink(InferResponse("m", "1", (), request.id))
        self.calls.append(FakeCall())
        return self.calls[-1]

    async def wait_for_replica(self, name: str, version: int, timeout: float) -> bool:
        return self.replicas.pop(0) if len(self.replicas) > 1 else self.replicas[0]


class Manager:
    """Answers demands when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[asyncio.Future[None]] = []

    async def demand(self, name: str) -> None:
        self.asked.append(name)
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]

    async def answer(self, error: Exception | None = None) -> None:
        await until(lambda: self.answers and not self.answers[-1].done())
        if error is None:
            self.answers[-1].set_result(None)
        else:
            self.answers[-1].set_exception(error)
        await let_run()


class Bench:
    def __init__(self, **limits: Any) -> None:
        self.models = FakeModels()
        self.manager = Manager()
        self.room = WaitingRoom(self.models, self.manager.demand, WaitingLimits(**limits))
        self.sink = Sink()

    def send(self, request_id: str = "", **fields: Any) -> waiting_room.WaitingCall:
        sent = msgspec.structs.replace(request(request_id), **fields)
        return self.room.hold(IDLE_ENTRY, sent, self.sink)

    def failures(self) -> list[tuple[ErrorCode, str]]:
        found = [response.failure for response in self.sink.responses]
        return [(failure.code, failure.message) for failure in found if failure is not None]


async def test_all_requests_of_a_version_wait_for_one_load_and_keep_their_order() -> None:
    bench = Bench()
    for number in "abc":
        bench.send(number)
    await let_run()
    assert (bench.manager.asked, bench.models.sent, bench.room.counts.requests) == (["m"], [], 3)
    await bench.manager.answer()
    assert [sent.id for sent in bench.models.sent] == ["a", "b", "c"]
    assert [response.id for response in bench.sink.responses] == ["a", "b", "c"]
    assert (bench.room.counts.requests, bench.room.counts.nbytes) == (0, 0)
    bench.send("d")
    await bench.manager.answer()
    assert bench.manager.asked == ["m", "m"]


async def test_a_failed_load_answers_all_that_wait_with_its_reason() -> None:
    bench = Bench()
    bench.send("a")
    bench.send("b")
    await bench.manager.answer(unavailable("failed to load 'm': no file"))
    assert bench.failures() == [(ErrorCode.UNAVAILABLE, "failed to load 'm': no file")] * 2
    assert bench.models.sent == []


async def test_it_asks_again_when_the_model_was_taken_away_before_it_was_reached() -> None:
    bench = Bench()
    bench.models.replicas = [False, True]
    bench.send("a")
    await bench.manager.answer()
    assert bench.models.sent == []
    await bench.manager.answer()
    assert [sent.id for sent in bench.models.sent] == ["a"]
    assert bench.manager.asked == ["m", "m"]


@pytest.mark.parametrize(
    ("limits", "size"), [({"requests": 2}, 0), ({"nbytes": 100}, 50)], ids=["count", "bytes"]
)
async def test_requests_beyond_the_limits_are_refused(limits: dict[str, int], size: int) -> None:
    bench = Bench(**limits)
    inputs = (Tensor("x", "UINT8", (size,), b"x" * size),)
    bench.send("a", inputs=inputs)
    bench.send("b", inputs=inputs)
    with pytest.raises(InferError, match="too many requests wait") as caught:
        bench.send("c", inputs=(Tensor("x", "UINT8", (1,), b"x"),))
    assert (caught.value.code, caught.value.retry_after_s > 0) == (ErrorCode.UNAVAILABLE, True)
    assert (bench.room.counts.refused, bench.room.counts.requests) == (1, 2)
    await bench.manager.answer()
    assert len(bench.models.sent) == 2


async def test_a_request_waits_no_longer_than_its_deadline_or_the_limit() -> None:
    bench = Bench(seconds=1e-6)
    bench.send("default")
    bench.send("past", deadline=monotonic() - 1)
    bench.send("patient", deadline=monotonic() + 1000)
    await until(lambda: len(bench.sink.responses) == 2)
    assert sorted(bench.failures()) == [
        (ErrorCode.UNAVAILABLE, "Deadline Exceeded"),
        (ErrorCode.UNAVAILABLE, "model 'm' is still not loaded after 1e-06 s"),
    ]
    assert (bench.room.counts.expired, bench.room.counts.requests) == (2, 1)
    await bench.manager.answer()
    assert [sent.id for sent in bench.models.sent] == ["patient"]


async def test_a_cancelled_request_leaves_and_gets_its_final_response() -> None:
    bench = Bench()
    call = bench.send("a")
    bench.send("b")
    call.cancel()
    assert bench.sink.responses == [], "the sink is not called before `cancel` returns"
    await let_run()
    assert [code for code, _ in bench.failures()] == [ErrorCode.CANCELLED]
    call.cancel()
    await bench.manager.answer()
    assert [sent.id for sent in bench.models.sent] == ["b"]


async def test_cancelling_after_the_load_cancels_the_request_itself() -> None:
    bench = Bench()
    call = bench.send("a")
    await bench.manager.answer()
    call.cancel()
    assert bench.models.calls[0].cancelled


@pytest.mark.parametrize("prepare", ["refused", "decoupled"])
async def test_what_the_loaded_model_refuses_is_answered(prepare: str) -> None:
    bench = Bench()
    if prepare == "refused":
        bench.models.refusal = unavailable("no")
    else:
        decoupled = LOADED.model_config
        decoupled.model_transaction_policy.decoupled = True
        bench.models.route(msgspec.structs.replace(LOADED, config=decoupled.SerializeToString()))
    bench.send("a")
    await bench.manager.answer()
    (failure,) = bench.failures()
    assert failure[0] is ErrorCode.UNAVAILABLE
    assert ("no" if prepare == "refused" else "decoupled") in failure[1]


async def test_waiting_without_a_request() -> None:
    bench = Bench()
    waits = [asyncio.create_task(bench.room.wait(IDLE_ENTRY)) for _ in range(3)]
    await let_run()
    waits[2].cancel()
    await let_run()
    assert bench.room.counts.requests == 2
    await bench.manager.answer(unavailable("why"))
    for wait in waits[:2]:
        with pytest.raises(InferError, match="why"):
            await wait
    assert bench.room.counts.requests == 0


async def test_closing_answers_what_waits() -> None:
    bench = Bench()
    bench.send("a")
    await let_run()
    await bench.room.close()
    assert bench.failures() == [(ErrorCode.UNAVAILABLE, "the server is shutting down")]
