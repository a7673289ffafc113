"""What callers of other applications catch."""

from collections.abc import AsyncGenerator

import pytest

from app.core.errors import unavailable
from nereid import InferError
from nereid.raised import for_callers


class Model:
    """Its first response is followed by an error."""

    closed = False

    async def call(self, name: str) -> AsyncGenerator[str, None]:
        return self._responses(name)

    async def _responses(self, name: str) -> AsyncGenerator[str, None]:
        try:
            yield name
            raise unavailable("gone")
        finally:
            self.closed = True


async def test_an_error_among_responses_is_the_public_one() -> None:
    responses = await for_callers(Model().call)("m")
    assert await anext(responses) == "m"
    with pytest.raises(InferError, match="gone") as caught:
        await anext(responses)
    assert caught.value.code == "UNAVAILABLE"


async def test_a_caller_that_stops_closes_the_responses() -> None:
    model = Model()
    responses = await for_callers(model.call)("m")
    await anext(responses)
    await responses.aclose()
    assert model.closed
