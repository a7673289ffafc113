"""Requests and responses as every part knows them."""

import weakref

from app.core.errors import InferError, internal, unavailable
from app.core.tensors import InferResponse, failed


class Tensors:
    """What a frame works on."""


def test_a_failed_response_keeps_nothing_of_what_raised_its_error() -> None:
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
    assert response.error is not None and response.error.message == "busy"
    assert held[0]() is None


def test_a_raised_error_does_not_keep_the_response_that_had_it() -> None:
    """Not even the collector could free it: a response is an object at which that does not look."""

    def told(response: InferResponse) -> str:
        try:
            response.raise_error()
        except InferError as error:
            return repr(error)
        return ""

    response = failed(unavailable("busy"))
    assert response.error is not None
    error = weakref.ref(response.error)
    assert told(response) == repr(error())
    del response
    assert error() is None
    InferResponse().raise_error()
