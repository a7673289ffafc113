"""A rollout over a router that sends nothing: requests are answered when the test says so."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core import inference
from app.core.errors import ErrorCode, Failure
from app.core.inference import Call, Sink, Target
from app.core.rollout.outcomes import StepOutcomes, VersionOutcomes
from app.core.rollout.split import WHOLE, Split
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.rollout import candidate_call, counted_call, flights
from app.rollout.mirror import Mirror
from app.rollout.traffic import RolloutTraffic, SplitTarget
from app.routing.refusals import not_ready
from app.routing.table import ModelState, RoutingTable, VersionEntry
from tests.unit.composed import Composed

BROKEN = Failure(ErrorCode.INTERNAL, "broken")
LOST = Failure(ErrorCode.UNAVAILABLE, "model 'm': connection to its replica lost")
REFUSED = Failure(ErrorCode.INVALID_ARG, "bad shape")


class Asked:
    """A request that a version was sent."""

    def __init__(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> None:
        self.version = entry.version
        self.promised = tuple(Tensor.from_array(name, np.ones(2, np.float32)) for name in entry.outputs)
        self.request = request
        self.sink = sink
        self.cancelled = False

    def cancel(self, advice: bool = False) -> None:
        self.cancelled = True

    def answer(self, failure: Failure | None = None, *outputs: Tensor) -> None:
        """Fail or answer, without `outputs` with those that the configuration promises."""
        if failure is None:
            self.respond(*(outputs or self.promised))
        else:
            self.sink(failed(failure))

    def respond(self, *outputs: Tensor, final: bool = True) -> None:
        self.sink(InferResponse("m", str(self.version), outputs, self.request.id, final=final))


class Clock:
    """A clock that the test moves on, by `wait`: modules that tell the time are made to ask it."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, int, Callable[[], Any]]] = []

    def call_later(self, delay: float, callback: Callable[[], Any]) -> SimpleNamespace:
        timer = (self.now + delay, id(callback), callback)
        self._timers.append(timer)

        def cancel() -> None:
            if timer in self._timers:
                self._timers.remove(timer)

        return SimpleNamespace(cancel=cancel)

    def wait(self, seconds: float) -> None:
        """Let time pass; timers are called when they are due."""
        until = self.now + seconds
        while self._timers and min(self._timers)[0] <= until:
            due = min(self._timers)
            self._timers.remove(due)
            self.now = max(self.now, due[0])
            due[2]()
        self.now = until


class FakeRouter(Composed):
    """Sends nothing; `out` are versions without a replica."""

    traffic: RolloutTraffic

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.out: set[int] = set()
        self.lost: dict[str, int] = {}
        self.sequences: list[list[int]] = []

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        return self.table.resolve(name, version)

    def compose(self, entry: VersionEntry) -> Target:
        return super().compose(entry) if entry.split is None else SplitTarget(entry, self, self.traffic)

    def available(self, entry: VersionEntry) -> bool:
        return entry.version not in self.out

    def is_at(self, entry: VersionEntry, call: Any) -> bool:
        return bool(call.version == entry.version)

    def losses(self, entry: VersionEntry) -> int:
        return self.lost.get(entry.application, 0)

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Asked:
        if entry.version in self.out:
            raise not_ready(entry.model, entry.version)
        self.asked.append(Asked(entry, request, sink))
        return self.asked[-1]

    def send_in_sequence(self, entries: Sequence[VersionEntry], request: InferRequest, sink: Sink) -> Call:
        self.sequences.append([entry.version for entry in entries])
        return super().send_in_sequence(entries, request, sink)


CONFIG = 'backend: "identity" output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }'


class Rollout:
    """A rollout of model m from version 1 to 2, and what its clients received."""

    def __init__(self) -> None:
        self.router = FakeRouter()
        self.clock = Clock()
        self.traffic = RolloutTraffic(cast(Any, self.router), Mirror(), self.clock.call_later)
        self.received: list[InferResponse] = []
        self.split = Split("r", "m", stable=1, candidate=2, weight=WHOLE // 2)
        self.configs = [CONFIG, CONFIG]
        self.load_seconds = 0.0
        self.states = [ModelState.READY, ModelState.READY]
        self.publish()

    def publish(self, application: str = "m:2", splits: bool = True, **changes: Any) -> None:
        self.split = msgspec.structs.replace(self.split, **changes)
        entries = [
            VersionEntry(
                "m",
                number,
                self.states[number - 1],
                load_seconds=self.load_seconds,
                application=f"m:{number}" if number == 1 else application,
                config=text_format.Parse(
                    self.configs[number - 1], mc.ModelConfig(name="m")
                ).SerializeToString(),
            )
            for number in (1, 2)
        ]
        self.router.table = RoutingTable(
            self.router.table.number + 1, True, tuple(entries), splits=(self.split,) if splits else ()
        )
        self.router.traffic = self.traffic
        self.traffic.follow(self.router.table)

    def send(self, **fields: Any) -> Any:
        request = InferRequest("m", "", **{"inputs": (), **fields})
        entry = self.router.resolve("m")
        return entry.target.submit(request, self.received.append)

    def versions(self, count: int, **fields: Any) -> list[int]:
        """Send requests that are answered; return which version each was sent to."""
        before = len(self.router.asked)
        for _ in range(count):
            self.send(**fields)
            self.router.asked[-1].answer()
        return [asked.version for asked in self.router.asked[before:]]

    def last(self) -> Asked:
        return self.router.asked[-1]

    def outcomes(self) -> StepOutcomes:
        (found,) = self.traffic.take()
        return found


def counts(outcomes: VersionOutcomes) -> tuple[int, int, int, int]:
    return outcomes.ok, outcomes.failed, outcomes.refused, outcomes.rescued


@pytest.fixture
def rollout(monkeypatch: pytest.MonkeyPatch) -> Rollout:
    made = Rollout()
    for module in (candidate_call, counted_call, flights, inference):
        monkeypatch.setattr(module, "monotonic", lambda: made.clock.now)
    loop = SimpleNamespace(call_later=made.clock.call_later)
    monkeypatch.setattr(candidate_call, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    return made
