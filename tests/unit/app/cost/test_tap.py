"""What clients are answered, counted by version and client."""

from contextvars import ContextVar, copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.core.cost.reports import CallUse
from app.core.errors import unavailable
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.cost import tap as tapping
from app.cost.tap import CostTap
from tests.unit.app.routing_fakes import CONFIG, entry

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


def test_rows_and_bytes_of_each_client() -> None:
    tap, route = CostTap(client), Route()
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


def test_what_fails_costs_nobody_anything() -> None:
    tap, route = CostTap(client), Route()
    target = tap(entry("m"), cast(Any, route))
    answers: list[InferResponse] = []
    target.submit(request(1), answers.append)
    _, sink = route.sent.pop()
    sink(failed(unavailable("away").failure, ""))
    assert len(answers) == 1 and tap.take() == []


@pytest.mark.parametrize(("kind", "weight"), [("rows", 2.0), ("bytes", 128.0), ("elements", 32.0)])
def test_the_weight_that_a_model_asks_for(kind: str, weight: float) -> None:
    tap, route = CostTap(), Route()
    asked = f'parameters {{ key: "cost_weight" value {{ string_value: "{kind}" }} }}'
    target = tap(entry("m", config=CONFIG + asked), cast(Any, route))
    target.submit(request(2), ignore)
    route.answer()
    assert [call.weight for call in tap.take()] == [weight]


def test_a_step_sends_further_ones_as_the_same_client() -> None:
    tap, route = CostTap(client), Route()
    target = tap(entry("m"), cast(Any, route))

    def next_step(_: InferResponse) -> None:
        target.submit(request(1, ("ensemble",)), ignore)

    as_client("a", partial(target.submit, request(1, ("ensemble",)), next_step))
    route.answer()
    route.answer()
    assert [(call.client, call.caller, call.requests, call.bytes_out) for call in tap.take()] == [
        ("a", "", 2, 0)
    ]


def test_calls_of_models_are_those_of_the_outermost() -> None:
    tap, route = CostTap(), Route()
    target = tap(entry("m"), cast(Any, route))
    target.submit(request(4, ("outer", "inner")), ignore)
    route.answer()
    assert [(call.client, call.caller, call.rows) for call in tap.take()] == [("", "outer", 4)]


def test_many_clients_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapping, "MOST", 2)
    tap, route = CostTap(client), Route()
    target = tap(entry("m"), cast(Any, route))
    for name in "abcda":
        as_client(name, partial(target.submit, request(1), ignore))
        route.answer()
    assert {call.client: call.requests for call in tap.take()} == {"a": 2, "b": 1, "other": 2}
