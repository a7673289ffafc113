"""Backends in C that release a request to be executed again."""

from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from tests.unit.backend_harness import Served, config
from tests.unit.backends.cpp.test_backend import BATCHED, DECOUPLED, ask
from tests.waiting import block_until

ITERATIVE = " sequence_batching { iterative_sequence: true }"


def served(libraries: Path, text: str) -> Served:
    return Served(find_backend(BackendPlace("probe", libraries)), config(text))


def test_rescheduled_request_is_not_answered(libraries: Path) -> None:
    for text in (BATCHED, DECOUPLED):
        model = served(libraries, text + ITERATIVE)
        (call,) = model(ask("reschedule"))
        assert call.rescheduled
        assert not call.detached
        model.backend.instance_execute(model.instance, [call])  # as the scheduler does
        assert not call.answered
        model.close()


def test_response_may_follow_a_reschedule(libraries: Path) -> None:
    model = served(libraries, DECOUPLED + ITERATIVE)

    (call,) = model(ask("answer and continue"))

    block_until(lambda: bool(call.responses))
    assert call.rescheduled and not call.answered
    (response,) = call.responses
    assert response.failure is None and not response.final
    model.close()


def test_only_iterative_models_reschedule(libraries: Path) -> None:
    for text in (BATCHED, DECOUPLED):
        model = served(libraries, text)
        with pytest.raises(InferError, match="not configured to handle such a flag") as caught:
            model(ask("reschedule"))
        assert caught.value.code is ErrorCode.INVALID_ARG
        model.close()
