"""The route of the page at `/`, and the list of models."""

import asyncio
import gc
import json
import re
from time import thread_time
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.access.grants import Grants
from app.access.tokens import make_token
from app.core.errors import unavailable
from app.core.files.certificates import Certificates
from app.ingress.access.guard import Guard
from app.ingress.access.service import GuardedService
from app.ingress.rest.front import HttpFront
from app.protocol.restrictions import Restriction
from app.routing.table import ModelState, VersionEntry
from app.settings.fronts import ConsoleSettings, HttpSettings
from tests.unit.app.http_fakes import IDENTITY, FakeService
from tests.unit.app.ingress.http_peer import Peer, Run, fronted, request

BROWSER = "Accept: text/html,application/xhtml+xml,*/*;q=0.8"
Answer = tuple[int, dict[str, str], bytes]


class Repository(FakeService):
    """A service with so many models that are ready, and an index that may fail."""

    def __init__(self, count: int = 1, trouble: Exception | None = None) -> None:
        super().__init__()
        self.names = [f"model{number:03}" for number in range(count)]
        self.trouble = trouble

    def served(self) -> list[VersionEntry]:
        config = IDENTITY.SerializeToString()
        return [VersionEntry(name, 1, ModelState.READY, config=config) for name in self.names]

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse:
        if self.trouble is not None:
            raise self.trouble
        found = pb.RepositoryIndexResponse()
        for name in self.names:
            found.models.add(name=name, version="1", state="READY")
        return found


async def asked(
    front: HttpFront, *headers: str, method: str = "GET", host: str = "localhost", path: str = "/"
) -> Answer:
    """Ask a front for a page, once."""
    peer = Peer(*await asyncio.open_connection("127.0.0.1", await front.start("127.0.0.1", 0)))
    answer = await peer.ask(
        request(path, b"", *headers, method=method).replace(b"localhost", host.encode(), 1)
    )
    peer.close()
    await front.stop(1)
    return answer


def page(run: Run, front: HttpFront, *headers: str, **options: Any) -> Answer:
    """Return the answer to a browser."""
    found: list[Answer] = []

    async def scenario() -> None:
        found.append(await asked(front, BROWSER, *headers, **options))

    run(scenario())
    return found[0]


@pytest.mark.parametrize(("host", "linked"), [("localhost:8000", "localhost"), ("[::1]:8000", "[::1]")])
def test_page_links_to_what_there_is(run: Run, host: str, linked: str) -> None:
    async def scenario() -> None:
        front = HttpFront(FakeService(), metrics_port=8002)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", await front.start("127.0.0.1", 0)))
        asked = request("/", b"", BROWSER, method="GET").replace(b"localhost", host.encode())
        status, headers, body = await peer.ask(asked)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        *pages, metrics = re.findall('<a href="([^"]+)"', body.decode())
        assert metrics == f"http://{linked}:8002/metrics"
        found = [page for page in pages if page != "/manual/"]  # there where `make docs` has built it
        assert found == ["/docs", "/openapi.json", "/v2/models", "/v2"]
        for linked_page in pages:
            assert (await peer.ask(request(linked_page, method="GET")))[0] == 200
        peer.close()
        await front.stop(1)

    run(scenario())


def test_page_without_metrics_has_no_link_to_them(run: Run) -> None:
    assert b"/metrics" not in page(run, HttpFront(FakeService()))[2]


@pytest.mark.parametrize(
    ("address", "host", "linked"),
    [
        ("127.0.0.1", "localhost:8000", "http://localhost:8003/"),
        ("127.0.0.1", "[::1]:8000", "http://[::1]:8003/"),
        ("127.0.0.1", "serving.example:8000", ""),  # who asks from elsewhere would find nothing
        ("0.0.0.0", "serving.example:8000", "http://serving.example:8003/"),
    ],
)
def test_page_links_to_the_console_where_it_is_reached(
    run: Run, address: str, host: str, linked: str
) -> None:
    settings = HttpSettings(allow_hosts=("*",))
    front = HttpFront(FakeService(), settings, console=ConsoleSettings(enabled=True, address=address))
    body = page(run, front, host=host)[2].decode()
    assert re.findall('<a href="([^"]*)">Console', body) == ([linked] if linked else [])
    assert "Console" not in page(run, HttpFront(FakeService(), settings), host=host)[2].decode()


def test_link_to_a_console_with_tls_says_so(run: Run) -> None:
    console = ConsoleSettings(enabled=True, certificates=Certificates("cert", "key"))
    front = HttpFront(FakeService(), HttpSettings(), console=console)
    assert 'href="https://localhost:8003/"' in page(run, front, host="localhost:8000")[2].decode()


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE"])
@pytest.mark.parametrize("accept", ["", "*/*", "application/json"])
def test_programs_find_nothing_there_as_in_triton(run: Run, method: str, accept: str) -> None:
    async def scenario() -> None:
        headers = [f"Accept: {accept}"] if accept else []
        front = HttpFront(FakeService())
        if method == "HEAD":
            peer = Peer(*await asyncio.open_connection("127.0.0.1", await front.start("127.0.0.1", 0)))
            await peer.send(request("/", b"", *headers, method=method))
            assert (await peer.reader.readline()).startswith(b"HTTP/1.1 404 ")
            peer.close()
            await front.stop(1)
            return
        status, _, body = await asked(front, *headers, method=method)
        assert (status, json.loads(body)["error"].partition(" Hint: ")[0]) == (404, "Not Found")

    run(scenario())


def test_page_is_static_and_strict(run: Run) -> None:
    _, headers, body = page(run, HttpFront(FakeService()))
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    assert b"<script" not in body and b" on" not in re.sub(rb">[^<]*<", b"><", body)


@pytest.mark.parametrize("host", ["<script>", "a'b", "a b", "x" * 300 + "!"])
def test_host_that_is_none_is_not_shown(run: Run, host: str) -> None:
    front = HttpFront(Repository(), HttpSettings(allow_hosts=("*",)))
    _, _, body = page(run, front, host=host)
    assert host.encode() not in body and b"http://localhost/v2/models/model000/infer" in body


def test_page_shows_what_is_in_service_without_the_manager(run: Run) -> None:
    status, _, body = page(run, HttpFront(Repository(2, unavailable("the manager is <away>"))))
    assert status == 200 and b"the manager is &lt;away&gt;" in body and b"model001" in body


def test_page_is_open_where_the_index_is(run: Run) -> None:
    secret = Restriction("key", "value")
    restricted = HttpSettings(restrictions={"model-repository": secret})
    assert page(run, HttpFront(Repository(), restricted))[0] == 403
    assert page(run, HttpFront(Repository(), restricted), "key: value")[0] == 200
    described = HttpSettings(restrictions={"metadata": secret})
    _, _, body = page(run, HttpFront(Repository(), described))
    assert b"model000" in body and b"INPUT0" not in body and b"curl" not in body
    inference = HttpSettings(restrictions={"inference": secret})
    assert b"-H &#x27;key: VALUE&#x27;" in page(run, HttpFront(Repository(), inference))[2]


def test_tokens_decide_which_models_it_has(run: Run) -> None:
    tokens = [
        make_token("all", name="a", scope=("manage",)),
        make_token("some", name="b", scope=("manage",), models=("model000",)),
        make_token("none", name="c", scope=("infer",)),
    ]
    for token, status, shown in (("all", 200, 2), ("some", 200, 1), ("none", 403, 0), ("other", 401, 0)):
        front = HttpFront(GuardedService(Repository(2)), guard=Guard(Grants(tokens), None))
        found, _, body = page(run, front, f"Authorization: Bearer {token}")
        assert (found, body.count(b"<details")) == (status, shown)
        assert body.count(b"Authorization: Bearer TOKEN&#x27; http") == shown


def test_many_models_hold_the_loop_for_a_moment_only(run: Run) -> None:
    async def scenario() -> None:
        async with fronted(Repository(500)) as front:
            peer = await front.connect()
            await peer.ask(request("/", b"", BROWSER, method="GET"))  # imports, and configurations parsed
            longest, done = 0.0, False

            async def watch() -> None:
                nonlocal longest
                while not done:
                    before = thread_time()  # not the time in which the machine does something else
                    await asyncio.sleep(0)
                    longest = max(longest, thread_time() - before)

            gc.freeze()  # a collection looks at what the request makes
            watching = asyncio.create_task(watch())
            _, _, body = await peer.ask(request("/", b"", BROWSER, method="GET"))
            done = True
            await watching
            assert body.count(b"<details") == 500 and len(body) < 1 << 20
            assert longest < 0.05, longest

    run(scenario())


def test_models_are_listed_with_their_states(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            status, _, body = await (await front.connect()).ask(request("/v2/models", method="GET"))
            models = [{"name": "a"}, {"name": "b", "version": "1", "state": "READY"}]
            assert (status, json.loads(body)) == (200, models)

    run(scenario())
