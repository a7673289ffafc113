"""Awaits the only response of a request."""

import asyncio
from collections.abc import Callable

from app.core.inference import Sink
from app.core.tensors import InferResponse


async def await_single_response(submit: Callable[[Sink], Callable[[], None]]) -> InferResponse:
    """Submit a request and wait for its response; cancellation of the wait cancels the request.

    Args:
        submit: submits the request with the given sink; returns the function that cancels it.
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
