"""Which source a client gets: what one token is told, no other is."""

import asyncio
import json
from time import monotonic

import pytest

from app.console.source import Refused
from app.console.sources import MAX_CLIENTS, Sources


class Server:
    """Asks for tokens, unless the test says otherwise; tells each what its name is."""

    def __init__(self, tokens: bool = True) -> None:
        self.tokens = tokens
        self.there = True

    async def get(self, path: str, authorization: str) -> bytes:
        if not self.there:
            raise OSError("gone")
        if self.tokens and not authorization.startswith("Bearer good"):
            raise Refused(401, "a valid token is required")
        row = {"version": "1", "state": "READY", "look": "good", "word": "Ready", "reason": "", "ready_at": 0}
        versions = [{"name": authorization or "all", **row, "load_s": 0, "figures": None}]
        names = [[authorization or "all", "1"]]
        rest = {"at": 0, "ready": True, "bounds_s": [1], "versions": versions, "names": names}
        return json.dumps({"cursor": "e.1", **rest}).encode()


async def told(sources: Sources, authorization: str) -> list[str]:
    """Return the names of the models that a client is told of."""
    source = await sources.of(authorization)
    source.viewed = monotonic()
    return [row["name"] for row in (await source.live(""))["models"]]


def test_each_token_has_a_source_of_its_own_and_those_not_looked_at_go_first() -> None:
    async def scenario() -> None:
        sources = Sources(Server().get)
        first = await sources.of("Bearer good 0")
        assert await told(sources, "Bearer good 0") == ["Bearer good 0"]
        for number in range(1, MAX_CLIENTS):
            assert await told(sources, f"Bearer good {number}") == [f"Bearer good {number}"]
        assert await sources.of("Bearer good 0") is first
        await sources.of("Bearer good 8")  # in place of 1
        assert await sources.of("Bearer good 0") is first
        assert len(sources._clients) == MAX_CLIENTS and "Bearer good 1" not in sources._clients
        await sources.close()

    asyncio.run(scenario())


def test_tokens_that_are_guessed_push_nobody_out() -> None:
    async def scenario() -> None:
        sources = Sources(Server().get)
        first = await sources.of("Bearer good 0")
        for number in range(2 * MAX_CLIENTS):
            with pytest.raises(Refused):
                await sources.of(f"Bearer guessed {number}")
        assert await sources.of("Bearer good 0") is first and len(sources._clients) == 1
        with pytest.raises(Refused):
            await sources.of("")
        await sources.close()

    asyncio.run(scenario())


def test_without_tokens_there_is_one_source_for_everybody() -> None:
    async def scenario() -> None:
        sources = Sources(Server(tokens=False).get)
        assert await sources.of("Bearer x") is await sources.of("")
        assert await sources.why_not_open() and sources.tokens is False
        await sources.close()

    asyncio.run(scenario())


def test_open_console_tells_nothing_before_it_knows_that_the_server_asks_for_tokens() -> None:
    async def scenario() -> None:
        server = Server()
        server.there = False
        sources = Sources(server.get)
        assert "does not answer" in await sources.why_not_open()
        server.there, sources._probed = True, -1e9
        assert await sources.why_not_open() == ""
        await sources.close()

    asyncio.run(scenario())
