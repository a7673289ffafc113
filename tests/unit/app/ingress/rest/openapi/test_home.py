"""The page at `/` and the list of models."""

import asyncio
import json
import re

import pytest

from app.ingress.rest.front import HttpFront
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.http_peer import Peer, Run, fronted, request


@pytest.mark.parametrize(("host", "linked"), [("localhost:8000", "localhost"), ("[::1]:8000", "[::1]")])
def test_home_page_links_to_what_there_is(run: Run, host: str, linked: str) -> None:
    async def scenario() -> None:
        front = HttpFront(FakeService(), metrics_port=8002)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", await front.start("127.0.0.1", 0)))
        asked = request("/", method="GET").replace(b"localhost", host.encode())
        status, headers, body = await peer.ask(asked)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        *pages, metrics = re.findall('href="([^"]+)"', body.decode())
        assert metrics == f"http://{linked}:8002/metrics"
        assert pages == ["/docs", "/openapi.json", "/v2", "/v2/models"]
        for page in pages:
            assert (await peer.ask(request(page, method="GET")))[0] == 200
        peer.close()
        await front.stop(1)

    run(scenario())


def test_home_page_without_metrics_has_no_link_to_them(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            _, _, body = await (await front.connect()).ask(request("/", method="GET"))
            assert b"Nereid" in body and b"metrics" not in body

    run(scenario())


def test_models_are_listed_with_their_states(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            status, _, body = await (await front.connect()).ask(request("/v2/models", method="GET"))
            models = [{"name": "a"}, {"name": "b", "version": "1", "state": "READY"}]
            assert (status, json.loads(body)) == (200, models)

    run(scenario())
