"""What clients are answered, counted by version and client."""

import gc
import random
import sys
import weakref
from contextvars import ContextVar, copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

from app.core.cost.reports import CallUse
from app.core.errors import unavailable
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, RegionSlice, Tensor, failed
from app.cost import tap as tapping
from app.cost.tap import CostTap
from app.native.choice import is_native
from tests.unit.app.routing_fakes import CONFIG, entry

COMPILED: Final = pytest.mark.skipif(not is_native("auto"), reason="the data plane is not compiled")
PLANES: Final = (False, pytest.param(True, marks=COMPILED))
CLIENT: ContextVar[str] = ContextVar("client", default="")


def client() -> Any:
    return SimpleNamespace(name=CLIENT.get()) if CLIENT.get() else None


class Route:
    """Keeps requests with their sinks."""

    available = True

    def __init__(self) -> None:
        self.sent: list[tuple[InferRequest, Sink]] = []

    def submit(self, request: InferRequest, sink: Sink) -> Any:
        self.sent.append((request, sink))

    def answer(self, **fields: Any) -> None:
        request, sink = self.sent.pop(0)
        sink(InferResponse("m", "1", request.inputs, **fields))


def request(rows: int, chain: tuple[str, ...] = ()) -> InferRequest:
    return InferRequest("m", "", (Tensor.from_array("X", np.zeros((rows, 16), np.float32)),), chain=chain)


def ignore(_: InferResponse) -> None:
    pass


def as_client(name: str, call: Any) -> Any:
    context = copy_context()
    context.run(CLIENT.set, name)
    return context.run(call)


@pytest.mark.parametrize("compiled", PLANES)
def test_rows_and_bytes_of_each_client(compiled: bool) -> None:
    tap, route = CostTap(client, compiled), Route()
    target = tap(entry("m"), cast(Any, route))
    for name, rows in (("a", 3), ("b", 1), ("a", 2)):
        as_client(name, partial(target.submit, request(rows), ignore))
    assert tap.take() == [], "nothing was answered"
    for _ in range(3):
        route.answer()
    assert tap.take() == [
        CallUse("m", 1, "a", "", 2, 5, 5.0, 320, 320),
        CallUse("m", 1, "b", "", 1, 1, 1.0, 64, 64),
    ]
    assert tap.take() == []


@pytest.mark.parametrize("compiled", PLANES)
def test_what_fails_costs_nobody_anything(compiled: bool) -> None:
    tap, route = CostTap(client, compiled), Route()
    target = tap(entry("m"), cast(Any, route))
    answers: list[InferResponse] = []
    target.submit(request(1), answers.append)
    _, sink = route.sent.pop()
    sink(failed(unavailable("away").failure, ""))
    assert len(answers) == 1 and tap.take() == []


@pytest.mark.parametrize("compiled", PLANES)
@pytest.mark.parametrize(("kind", "weight"), [("rows", 2.0), ("bytes", 128.0), ("elements", 32.0)])
def test_the_weight_that_a_model_asks_for(kind: str, weight: float, compiled: bool) -> None:
    tap, route = CostTap(compiled=compiled), Route()
    asked = f'parameters {{ key: "cost_weight" value {{ string_value: "{kind}" }} }}'
    target = tap(entry("m", config=CONFIG + asked), cast(Any, route))
    target.submit(request(2), ignore)
    route.answer()
    assert [call.weight for call in tap.take()] == [weight]


@pytest.mark.parametrize("compiled", PLANES)
def test_a_step_sends_further_ones_as_the_same_client(compiled: bool) -> None:
    tap, route = CostTap(client, compiled), Route()
    target = tap(entry("m"), cast(Any, route))

    def next_step(_: InferResponse) -> None:
        target.submit(request(1, ("ensemble",)), ignore)

    as_client("a", partial(target.submit, request(1, ("ensemble",)), next_step))
    route.answer()
    route.answer()
    assert [(call.client, call.caller, call.requests, call.bytes_out) for call in tap.take()] == [
        ("a", "", 2, 0)
    ]


@pytest.mark.parametrize("compiled", PLANES)
def test_calls_of_models_are_those_of_the_outermost(compiled: bool) -> None:
    tap, route = CostTap(compiled=compiled), Route()
    target = tap(entry("m"), cast(Any, route))
    target.submit(request(4, ("outer", "inner")), ignore)
    route.answer()
    assert [(call.client, call.caller, call.rows) for call in tap.take()] == [("", "outer", 4)]


@pytest.mark.parametrize("compiled", PLANES)
def test_many_clients_are_counted_together(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapping, "MOST", 2)
    tap, route = CostTap(client, compiled), Route()
    target = tap(entry("m"), cast(Any, route))
    for name in "abcda":
        as_client(name, partial(target.submit, request(1), ignore))
        route.answer()
    assert {call.client: call.requests for call in tap.take()} == {"a": 2, "b": 1, "other": 2}


@COMPILED
@pytest.mark.parametrize(
    "config", [CONFIG, CONFIG.replace("max_batch_size", "# max_batch_size")], ids=["batched", "unbatched"]
)
def test_c_counts_what_python_counts(config: str) -> None:
    chance = random.Random(3)
    taps = [CostTap(client, compiled) for compiled in (False, True)]
    routes = [Route(), Route()]
    targets = [
        tap(entry("m", config=config), cast(Any, route)) for tap, route in zip(taps, routes, strict=True)
    ]
    received: list[list[InferResponse]] = [[], []]
    for number in range(3000):
        sent, response = some_request(chance), some_response(chance)
        name = chance.choice(("", "a", "b"))
        for target, route, sink in zip(targets, routes, received, strict=True):
            as_client(name, partial(target.submit, sent, sink.append))
            route.sent.pop()[1](response)
        if number % 500 == 499:
            python, compiled = (sorted(tap.take(), key=str) for tap in taps)
            assert python == compiled and python
    assert received[0] == received[1]


def some_request(chance: random.Random) -> InferRequest:
    shapes = [
        tuple(chance.choice((1, 2, 7)) for _ in range(chance.randrange(3)))
        for _ in range(chance.randrange(3))
    ]
    inputs = (Tensor("X", "UINT8", shape, some_data(chance)) for shape in shapes)
    return InferRequest("m", "", tuple(inputs), chain=chance.choice(((), (), (), ("outer",))))


def some_response(chance: random.Random) -> InferResponse:
    if chance.random() < 0.1:
        return failed(unavailable("away").failure, "")
    outputs = tuple(Tensor("Y", "UINT8", (1,), some_data(chance)) for _ in range(chance.randrange(3)))
    return InferResponse("m", "1", outputs, final=chance.random() < 0.8)


def some_data(chance: random.Random) -> Any:
    data = bytes(chance.randrange(20))
    return chance.choice((data, memoryview(data), RegionSlice("region", 0, len(data))))


@COMPILED
def test_what_has_been_counted_is_not_kept() -> None:
    tap, route = CostTap(client, compiled=True), Route()
    target = tap(entry("m"), cast(Any, route))
    sent = request(1)
    known = sys.getrefcount(sent)
    for _ in range(3):
        target.submit(sent, ignore)
        route.answer()
    assert sys.getrefcount(sent) == known
    gone = weakref.ref(route)
    del tap, target, route
    gc.collect()
    assert gone() is None
