"""Handles of models follow the routing table."""

from typing import Any, cast

import pytest

import app.handle
from app.core.errors import InferError
from app.handle import ModelHandle, Tables
from app.routing.table import RoutingTable
from tests.unit.ensembles import ensemble, entry, model, step


class FakeTables:
    application = "server"

    def __init__(self) -> None:
        self.publish("m:1")

    def publish(self, application: str) -> None:
        chain = ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"))
        self.table = RoutingTable(1, True, (entry("m", model(), application=application), entry("e", chain)))


class FakeServeHandle:
    def __init__(self, deployment: str, application: str) -> None:
        self._deployment = deployment
        self._application = application
        self._options: dict[str, Any] = {}

    def options(self, **options: Any) -> "FakeServeHandle":
        self._options = options
        return self

    def remote(self, *inputs: str) -> tuple[Any, ...]:
        return self._deployment, self._application, self._options, *inputs


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> FakeTables:
    def serve_handle(name: str, application: str) -> FakeServeHandle:
        return FakeServeHandle(name, application)

    monkeypatch.setattr(app.handle.serve, "get_deployment_handle", serve_handle)
    return FakeTables()


def handle(tables: FakeTables, name: str = "m", version: str = "") -> ModelHandle:
    return ModelHandle(cast(Tables, tables), name, version, {})


def test_a_reload_is_followed(tables: FakeTables) -> None:
    plain = handle(tables)
    streaming = plain.options(stream=True)
    method = {"method_name": "__call__"}
    assert plain.remote("a") == ("m", "m:1", method, "a")
    tables.publish("m:1@2")
    assert plain.remote("b") == ("m", "m:1@2", method, "b")
    assert streaming.remote("c") == ("m", "m:1@2", {"stream": True, **method}, "c")


def test_an_ensemble_is_called_where_it_runs(tables: FakeTables) -> None:
    method = {"method_name": "call"}
    assert handle(tables, "e").remote("a") == ("ingress", "server", method, "e", "", "a")
    streaming = handle(tables, "e", "1").options(stream=True)
    assert streaming.remote("b") == ("ingress", "server", {"stream": True, **method}, "e", "1", "b")


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        ("nobody", "", "Request for unknown model: 'nobody' is not found"),
        ("m", "2", "Request for unknown model: 'm' version 2 is not found"),
        ("e", "3", "Request for unknown model: 'e' version 3 is not found"),
    ],
)
def test_what_cannot_be_called(tables: FakeTables, name: str, version: str, text: str) -> None:
    with pytest.raises(InferError) as caught:
        handle(tables, name, version).remote("a")
    assert caught.value.message == text
