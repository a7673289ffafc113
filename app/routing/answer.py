"""Waiting for the only response of a request."""

import asyncio
from collections.abc import Callable

from app.core.inference import Sink
from app.core.tensors import InferResponse


async def await_single_response(submit: Callable[[Sink], Callable[[], None]]) -> InferResponse:
    """Submit a request and wait for its response; giving up on that cancels it.

    `submit` returns what cancels the request.
    """
    answered: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

    def sink(response: InferResponse) -> None:
        if not answered.done():
            answered.set_result(response)

    cancel = submit(sink)
    try:
        return await answered
    except asyncio.CancelledError:
        cancel()
        raise
