"""Requests whose model must be loaded before they can be read, over HTTP."""

import json

import pytest

from app.core.errors import unavailable
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.http_peer import Run, fronted, json_infer, request

_GENERATE = request("/v2/models/identity/generate", b'{"INPUT0":[1,2]}')
_STREAM = request("/v2/models/identity/generate_stream", b'{"INPUT0":[1,2]}')
_CONFIG = b"GET /v2/models/identity/config HTTP/1.1\r\nHost: localhost\r\n\r\n"
_METADATA = b"GET /v2/models/identity HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("sent", [json_infer(), _GENERATE, _STREAM, _CONFIG, _METADATA])
def test_a_request_is_read_when_its_model_is_loaded(run: Run, sent: bytes) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.idle = True
        async with fronted(service) as front:
            peer = await front.connect()
            status, _, body = await peer.ask(sent)
            assert (status, b"error" in body, service.idle) == (200, False, False)

    run(scenario())


@pytest.mark.parametrize("sent", [json_infer(), _GENERATE, _STREAM, _CONFIG, _METADATA])
def test_the_reason_of_a_failed_load_answers(run: Run, sent: bytes) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.idle, service.failure = True, unavailable("failed to load 'identity'")
        async with fronted(service) as front:
            peer = await front.connect()
            status, _, body = await peer.ask(sent)
            assert (status, json.loads(body)) == (503, {"error": "failed to load 'identity'"})

    run(scenario())
