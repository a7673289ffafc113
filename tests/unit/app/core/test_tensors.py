"""Requests and responses as every part knows them."""

import weakref

import pytest

from app.core.errors import ErrorCode, Failure, FailureReason, InferError, internal, unavailable
from app.core.tensors import InferResponse, failed


class Tensors:
    """What a frame works on."""


def test_failed_response_keeps_no_frames_alive() -> None:
    held: list[weakref.ref[Tensors]] = []

    def work() -> None:
        tensors = Tensors()
        held.append(weakref.ref(tensors))
        raise internal("broken")

    def refuse() -> None:
        try:
            work()
        except InferError as cause:
            raise unavailable("busy") from cause

    try:
        refuse()
    except InferError as error:
        response = failed(error)
    assert response.failure is not None and response.failure.message == "busy"
    assert held[0]() is None


def test_response_raises_an_error_made_from_its_failure() -> None:
    response = failed(unavailable("busy"))
    with pytest.raises(InferError) as caught:
        response.raise_error()
    assert caught.value.failure == response.failure == Failure(ErrorCode.UNAVAILABLE, "busy")
    InferResponse().raise_error()


def test_unknown_exception_is_an_internal_failure_of_the_backend() -> None:
    assert Failure.from_exception(ValueError("no such row")) == Failure(
        ErrorCode.INTERNAL, "no such row", FailureReason.BACKEND
    )
    assert Failure.from_exception(KeyError()).message == "KeyError"
