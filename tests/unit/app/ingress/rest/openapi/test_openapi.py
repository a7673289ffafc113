"""The OpenAPI document is true, and its page needs no other server."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.core.observability.live_settings import LiveSettings
from app.ingress.client_memory.registry import SharedMemory
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.management import build_rest_api
from app.ingress.tracing.observer import Observer
from app.tape.browsing import TapeBrowser
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.http_peer import fronted
from tests.unit.app.ingress.rest_calls import call

VALUES = {"model": "identity", "version": "1", "region": "r", "repository": "any"}
QUERIES = {"/v2/nereid/counters": "?model=identity"}


class Recording(FakeService):
    """Has a tape."""

    def tape(self) -> TapeBrowser:
        return TapeBrowser(Path())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    file = Path(f"/dev/shm/nereid-openapi-{os.getpid()}")
    file.write_bytes(bytes(64))
    service = Recording()
    service.shared_memory = SharedMemory(str(tmp_path))
    service.shared_memory.register_system("r", file.name, 0, 64)
    yield service
    file.unlink()


@pytest.fixture
def api(service: FakeService) -> RestApi:
    return build_rest_api(service, observer=Observer(LiveSettings()))


def operations(document: dict[str, Any], method: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        if method in methods:
            yield path, methods[method]


def closed(schema: Any) -> Any:
    """Return a schema whose objects have no other properties than those that it names."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(part) for key, part in schema.items()}
    return {"additionalProperties": False, **parts} if "properties" in schema else parts


def validate(document: dict[str, Any], operation: dict[str, Any], body: bytes) -> None:
    content = operation["responses"]["200"].get("content")
    if content is None:
        assert body == b""
        return
    ((media, described),) = content.items()
    value = json.loads(body) if media == "application/json" else body.decode()
    schema = described["schema"]
    components = {**document["components"], "schemas": closed(document["components"]["schemas"])}
    Draft202012Validator({**schema, "components": components}).validate(value)


def ask(api: RestApi, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    return asyncio.run(call(api, method, path.format(**VALUES), body))


def test_every_documented_get_route_answers_by_its_schema(api: RestApi) -> None:
    document = api.openapi()
    found = dict(operations(document, "get"))
    assert len(found) > 15
    for path, operation in found.items():
        status, body = ask(api, "GET", path + QUERIES.get(path, ""))
        if path == "/v2/cudasharedmemory/region/{region}/status":
            assert status == 404
        else:
            assert status == 200, path
            validate(document, operation, body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/repository/index", b""),
        ("/v2/logging", b'{"log_verbose_level":1}'),
        ("/v2/trace/setting", b'{"trace_rate":"5"}'),
        ("/v2/models/{model}/trace/setting", b"{}"),
        ("/v2/nereid/tape/setting", b'{"recording":false}'),
        ("/v2/models/{model}/tape/setting", b'{"rate":0.5}'),
        ("/v2/repository/models/{model}/load", b""),
        ("/v2/repository/models/{model}/unload", b""),
        ("/v2/repository/models/{model}/rollout", b'{"action":"pause"}'),
    ],
)
def test_changes_answer_by_their_schema(api: RestApi, path: str, body: bytes) -> None:
    document = api.openapi()
    status, answer = ask(api, "POST", path, body)
    assert status == 200
    validate(document, document["paths"][path]["post"], answer)


def test_every_operation_declares_parameters_bodies_and_errors(api: RestApi) -> None:
    document = api.openapi()
    Draft202012Validator.check_schema(document["components"]["schemas"]["ModelStatistics"])
    for method in ("get", "post"):
        for path, operation in operations(document, method):
            assert set(re.findall(r"{(\w+)}", path)) == {
                given["name"] for given in operation.get("parameters", [])
            }
            assert {"200", "4XX", "5XX"} == operation["responses"].keys(), path
            assert operation["description"] and len(operation["tags"]) == 1
            for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(operation)):
                assert reference in document["components"]["schemas"]


def test_every_route_is_documented(api: RestApi) -> None:
    routes = [route for route in api.routes if isinstance(route, RestRoute)]
    paths = {route.path_format for route in routes if not re.match("/(docs|manual|openapi|$)", route.path)}
    inference = {
        path for path in api.openapi()["paths"] if re.search("/(infer|generate|generate_stream)$", path)
    }
    assert set(api.openapi()["paths"]) == paths | inference
    assert len(inference) == 6
    stream = api.openapi()["paths"]["/v2/models/{model}/generate_stream"]["post"]["responses"]["200"]
    assert list(stream["content"]) == ["text/event-stream"]


def test_errors_are_those_of_the_schema(api: RestApi) -> None:
    document = api.openapi()
    components = {"components": document["components"]}
    status, body = ask(api, "GET", "/v2/models/none")
    assert status == 404
    Draft202012Validator({"$ref": "#/components/schemas/Error", **components}).validate(json.loads(body))


async def test_docs_refer_to_nothing_on_another_server() -> None:
    async with fronted() as front:
        peer = await front.connect()
        status, _, page = await peer.ask(b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == 200
        assert not re.search(rb"https?://", page)
        references = re.findall(rb"""(?:src|href)="([^"]+)"|url: '([^']+)'""", page)
        assert len(references) == 4
        for path in (first or second for first, second in references):
            status, _, body = await peer.ask(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            assert status == 200 and len(body) > 1000, path
