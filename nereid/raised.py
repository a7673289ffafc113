"""The server's errors as the one that callers catch, who may be unable to import the server's own."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import wraps
from typing import Any

import nereid.errors as public
from app.core.errors import InferError

Method = Callable[..., Awaitable[Any]]


@contextmanager
def public_errors() -> Iterator[None]:
    """Raise `nereid.InferError` in place of the server's."""
    try:
        yield
    except InferError as error:
        raise public.InferError(error.code.value, error.message) from None


def for_callers(method: Method) -> Method:
    """Return a method that raises `nereid.InferError`, also from the generator that it may return."""

    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with public_errors():
            answer = await method(*args, **kwargs)
        return _stream(answer) if isinstance(answer, AsyncGenerator) else answer

    return call


async def _stream(responses: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    async with aclosing(responses):
        with public_errors():
            async for response in responses:
                yield response
