"""Requests and responses as every part knows them."""

import weakref

from app.core.errors import InferError, unavailable
from app.core.tensors import failed


class Tensors:
    """What a frame works on."""


def test_a_failed_response_keeps_nothing_of_what_raised_its_error() -> None:
    held: list[weakref.ref[Tensors]] = []

    def refuse() -> None:
        tensors = Tensors()
        held.append(weakref.ref(tensors))
        raise unavailable("busy")

    try:
        refuse()
    except InferError as error:
        response = failed(error)
    assert response.error is not None and response.error.message == "busy"
    assert held[0]() is None
