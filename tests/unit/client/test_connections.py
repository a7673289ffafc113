"""Connections that cannot be made, and those that nobody closes."""

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid_client import AsyncServer, InputError, Server, ServerError, Unavailable, connect, retry
from nereid_client.errors import Unreachable
from tests.certificates import Authority
from tests.server import ROOT, free_port
from tests.unit.client.serving import Addresses, serve
from tests.unit.nereid.engine.repositories import FP32, add_model


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "double", config=FP32.replace("-1", "2"))
    yield from serve(repository, load_model=["double"])


def refusal(url: str) -> ServerError:
    """Return what a call says that may be sent again for half a minute."""
    with connect(url, timeout=30) as server, pytest.raises(ServerError) as found:
        server.metadata()
    return found.value


def test_closed_port_is_told_in_a_sentence() -> None:
    port = free_port()
    url = f"http://localhost:{port}"
    with connect(url, timeout=1) as server, pytest.raises(Unavailable) as found:
        server.metadata()
    assert found.value.message.startswith(f"cannot connect to localhost:{port}: Connection refused (")
    assert f"nothing answers at {url}: is that the address?" in found.value.message


@pytest.mark.parametrize("url", ["http://localhost:{}", "grpc://localhost:{}", "http://nobody.invalid:{}"])
def test_wrong_address_is_told_within_seconds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    async def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(retry, "monotonic", lambda: now)
    monkeypatch.setattr(retry, "pause", pause)
    address = url.format(free_port())
    with connect(address) as server, pytest.raises(Unavailable) as found:
        server.model("double")(IN=[1, 2])
    assert 3 < now - 100 < 6, "a call has a minute"
    assert f"nothing answers at {address}: is that the address?" in found.value.message


async def test_server_that_was_there_is_tried_for_the_time_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_CONTACT", 0.0)
    attempts = iter([Unreachable("UNAVAILABLE", "no"), Unreachable("UNAVAILABLE", "no"), None])

    async def attempt(left: float) -> str:
        if error := next(attempts):
            raise error
        return "there"

    contact = retry.Contact("http://x")
    contact.made = True
    assert await retry.repeated(attempt, 30.0, True, contact) == "there"


ASKED: dict[str, Callable[[AsyncServer], Awaitable[Any]]] = {
    "live": lambda server: server.live(),
    "index": lambda server: server.index(),
    "statistics": lambda server: server.statistics("double"),
    "an error": lambda server: server.statistics("nobody"),
    "a model's call": lambda server: server.model("double")(IN=[1, 2]),
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
async def test_any_answer_shows_that_the_server_is_there(
    addresses: Addresses, protocol: str, ask: Callable[[AsyncServer], Awaitable[Any]]
) -> None:
    async with AsyncServer(getattr(addresses, protocol)) as server:
        assert not server.transport.contact.made
        with suppress(ServerError):
            await ask(server)
        assert server.transport.contact.made, "else a call gives up in seconds when the server restarts"


def test_what_is_there_shows_itself(addresses: Addresses) -> None:
    with connect(addresses.http) as server:
        model = server.model("double")
        assert repr(server) == f"<Server {addresses.http}>"
        assert repr(model) == f"<Model double of {addresses.http}>"
        model(IN=[1, 2])
        assert repr(model) == f"<Model double of {addresses.http}: IN FP32[2] -> OUT FP32[2]>"
        assert repr(server.model("double", 3)) == f"<Model double version 3 of {addresses.http}>"


@pytest.mark.parametrize("value", [[1.0, 2.0], np.array([1, 2], np.float32), 1.0, "text"])
def test_value_without_the_name_of_an_input_is_told(addresses: Addresses, value: Any) -> None:
    with connect(addresses.http) as server:
        model = server.model("double")
        for call in (model, lambda given: model.submit(given).result(), model.sequence()):
            with pytest.raises(InputError, match=r"model\(NAME=\.\.\.\)"):
                call(value)
        with pytest.raises(InputError, match="by the names of the model's inputs"):
            list(model.stream(value))


def test_name_that_nobody_has_is_told_in_a_sentence() -> None:
    url = "http://nobody.invalid:80"
    with connect(url, timeout=30, retry=False) as server, pytest.raises(Unavailable) as found:
        server.metadata()
    assert found.value.message.startswith("cannot connect to nobody.invalid:80: ")
    assert "ssl" not in found.value.message


def test_port_of_grpc_is_told_at_once(addresses: Addresses) -> None:
    host = addresses.grpc.removeprefix("grpc://")
    failure = refusal(f"http://{host}")
    assert not isinstance(failure, Unavailable), "it would be asked again"
    assert "gRPC port: HTTP is at port" in failure.message


def test_port_of_http_is_told_at_once(addresses: Addresses) -> None:
    failure = refusal(f"grpc://{addresses.http.removeprefix('http://')}")
    assert (failure.code, type(failure)) == ("UNIMPLEMENTED", ServerError)
    assert "HTTP port: gRPC is at port" in failure.message


def test_port_without_tls_is_told_at_once(addresses: Addresses) -> None:
    host = addresses.http.removeprefix("http://")
    failure = refusal(f"https://{host}")
    assert failure.message == f"{host} does not answer by TLS: is it http://?"


def test_certificate_of_an_unknown_authority_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    cert, key = Authority(tmp_path).issue("server")
    flags: dict[str, object] = {"http_server_cert": str(cert), "http_server_key": str(key)}
    for each in serve(tmp_path / "models", True, http_use_ssl=True, **flags):
        host = each.http.removeprefix("https://")
        failure = refusal(f"https://{host}")
    assert failure.message.startswith(f"the certificate of {host} is refused: ")


@pytest.mark.parametrize("url", ["http", "grpc"])
@pytest.mark.parametrize("kept", ["", "kept = "])
def test_connections_that_nobody_closes_end_without_a_word(addresses: Addresses, url: str, kept: str) -> None:
    code = f"""
import gc
import nereid_client
{kept}nereid_client.connect("{getattr(addresses, url)}").model("double")(IN=[1, 2])
gc.collect()
server = nereid_client.connect("{getattr(addresses, url)}")
print(server.model("double")(IN=[1, 2])["OUT"])
"""
    command = [sys.executable, "-W", "always", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[2. 4.]\n", "")


def test_pool_that_the_server_refuses_fails_with_one_error(addresses: Addresses) -> None:
    for url in addresses:
        with connect(url) as server, pytest.raises(ServerError, match="allow-client-shm") as found:
            server.pool().__enter__()
        assert found.value.__context__ is None or not isinstance(found.value.__context__, ServerError)


def test_output_that_is_not_there_is_told_with_those_that_are(addresses: Addresses) -> None:
    with Server(addresses.http) as server:
        result = server.model("double")(IN=np.array([1, 2], np.float32))
    with pytest.raises(KeyError, match="no output 'OTHER' in the answer, which has: OUT"):
        result["OTHER"]
    assert result.get("OTHER") is None
