"""Handles of models call an ingress of the server."""

import pickle
from typing import Any

import pytest
from ray import serve

from nereid import InferError, ModelHandle, model_handle


class FakeServeHandle:
    """Returns what it is called with."""

    def __init__(self, deployment: str, application: str, options: dict[str, Any] | None = None) -> None:
        self.target = deployment, application
        self._options = options or {}

    def options(self, **options: Any) -> "FakeServeHandle":
        return FakeServeHandle(*self.target, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return self.target, self._options, args, kwargs


@pytest.fixture(autouse=True)
def serve_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "get_deployment_handle", FakeServeHandle)


def test_call_names_the_model() -> None:
    target, options, args, kwargs = model_handle("m").remote({"IN": 1}, outputs=["OUT"])
    assert (target, options) == (("ingress", "nereid"), {"method_name": "call"})
    assert (args, kwargs) == (("m", "", {"IN": 1}), {"outputs": ["OUT"]})


def test_version_and_application_are_chosen() -> None:
    target, _, args, _ = model_handle("m", 2, application="other").remote({})
    assert target == ("ingress", "other")
    assert args == ("m", "2", {})


def test_options_of_one_handle_leave_others_alone() -> None:
    plain = model_handle("m")
    streaming = plain.options(stream=True)
    assert streaming.remote()[1] == {"method_name": "call", "stream": True}
    assert plain.remote()[1] == {"method_name": "call"}


def test_handle_and_error_can_be_pickled() -> None:
    handle = pickle.loads(pickle.dumps(model_handle("m", 3)))
    assert isinstance(handle, ModelHandle)
    assert handle.remote()[2] == ("m", "3")
    error = pickle.loads(pickle.dumps(InferError("NOT_FOUND", "no such model")))
    assert (error.code, error.message, str(error)) == ("NOT_FOUND", "no such model", "no such model")
