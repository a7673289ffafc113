"""Web pages of other sites and the management APIs, over real connections."""

import json
import socket

import pytest

from tests.unit.app.ingress.http_peer import Run, fronted, json_infer, request

FOREIGN = "Origin: https://evil.example"
LOAD = "/v2/repository/models/m/load"
BODY = json.dumps({"parameters": {"config": "{}", "file:1/model.py": ""}}).encode()


def test_web_page_cannot_load_a_model(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            status, _, body = await peer.ask(request(LOAD, BODY, "Content-Type: text/plain", FOREIGN))
            text = "Origin 'https://evil.example' is not this server's and not allowed by --allow-origin"
            assert (status, json.loads(body)) == (403, {"error": text})
            rebound = request(LOAD, BODY, "Origin: http://evil").replace(b"localhost", b"evil")
            assert (await peer.ask(rebound))[0] == 403
            assert front.fake.loaded == []
            assert (await peer.ask(request(LOAD, BODY, "Origin: http://localhost")))[0] == 200
            assert (await peer.ask(request(LOAD, BODY)))[0] == 200
            named = request(LOAD, BODY).replace(b"localhost", socket.gethostname().encode())
            assert (await peer.ask(named))[0] == 200

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/m/unload"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/unregister"),
        ("POST", "/v2/trace/setting"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/models/identity/config"),
    ],
)
def test_management_routes_refuse_other_sites(run: Run, method: str, path: str) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            assert (await peer.ask(request(path, b"{}", FOREIGN, method=method)))[0] == 403
            rebound = request(path, b"{}", method=method).replace(b"localhost", b"evil.example")
            assert (await peer.ask(rebound))[0] == 403

    run(scenario())


def test_allowed_origins_and_hosts_use_management_routes(run: Run) -> None:
    async def scenario() -> None:
        settings = {"allow_origins": ("https://evil.example",), "allow_hosts": ("gateway",)}
        async with fronted(settings=settings) as front:
            peer = await front.connect()
            assert (await peer.ask(request(LOAD, BODY, FOREIGN).replace(b"localhost", b"gateway")))[0] == 200

    run(scenario())


def test_inference_is_answered_for_any_host(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            assert (await peer.ask(json_infer().replace(b"localhost", b"triton.example")))[0] == 200

    run(scenario())
