"""Recording is switched while a server runs, through its front."""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from app.tape.recording import Tapped
from tests.unit.app.tape.bench import Bench
from tests.unit.nereid.engine.repositories import add_model

SERVER, DOUBLE = "/v2/nereid/tape/setting", "/v2/models/double/tape/setting"
FAILS = "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('no luck')) for r in requests]"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    repository, directory = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("tape")
    add_model(repository, "double")
    add_model(repository, "fails", FAILS)
    add_model(repository, "never", files={"tape.yaml": "rate: 0\n"})
    with closing(Bench(repository, directory)) as bench:
        yield bench


@pytest.fixture
def bench(made: Bench) -> Iterator[Bench]:
    """Have it record everything again afterwards."""
    yield made
    for path in (SERVER, DOUBLE, "/v2/models/never/tape/setting"):
        set_to(made, path, recording=None, rate=None)


def asked(bench: Bench, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    with closing(HTTPConnection("127.0.0.1", bench.port, timeout=20)) as connection:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def set_to(bench: Bench, path: str, **change: Any) -> Any:
    status, told = asked(bench, "POST", path, change)
    assert status == 200, told
    return told


def test_what_holds_is_told(bench: Bench) -> None:
    assert asked(bench, "GET", SERVER) == (200, {"recording": True, "rate": 1.0})
    assert asked(bench, "GET", DOUBLE) == (200, {"recording": True, "rate": None})
    assert set_to(bench, DOUBLE, rate=0.5) == {"recording": True, "rate": 0.5}
    assert set_to(bench, SERVER, recording=False) == {"recording": False, "rate": 1.0}
    assert asked(bench, "GET", DOUBLE) == (200, {"recording": False, "rate": 0.5})


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_nothing_is_recorded_while_it_is_off(bench: Bench, protocol: str) -> None:
    bench.over(protocol, "double", request_id=f"before-{protocol}")
    set_to(bench, SERVER, recording=False)
    assert not isinstance(bench.engine.entry("double").target, Tapped)  # nothing is left on the path
    bench.over(protocol, "double", request_id=f"off-{protocol}")
    with pytest.raises(InferenceServerException):
        bench.over(protocol, "fails", request_id=f"off-{protocol}")
    set_to(bench, SERVER, recording=True)
    assert isinstance(bench.engine.entry("double").target, Tapped)
    bench.over(protocol, "double", request_id=f"after-{protocol}")
    rows = bench.rows(2, lambda row: row.id.endswith(protocol))
    assert [row.id for row in rows] == [f"before-{protocol}", f"after-{protocol}"]


def test_a_model_is_switched_by_itself(bench: Bench) -> None:
    set_to(bench, SERVER, recording=False)
    set_to(bench, DOUBLE, recording=True)
    bench.over("http", "double", request_id="alone")
    (row,) = bench.rows(1, lambda row: row.id == "alone")
    assert row.model == "double"
    with pytest.raises(InferenceServerException):
        bench.over("http", "fails", request_id="alone")
    bench.over("http", "double", request_id="alone")
    assert [row.model for row in bench.rows(2, lambda row: row.id == "alone")] == ["double"] * 2


def test_rate_takes_the_place_of_that_of_tape_yaml(bench: Bench) -> None:
    bench.over("http", "never", request_id="as its file says")
    set_to(bench, SERVER, rate=1.0)
    bench.over("http", "never", request_id="as its file says")
    set_to(bench, "/v2/models/never/tape/setting", rate=1.0)
    bench.over("http", "never", request_id="as was set")
    (row,) = bench.rows(1, lambda row: row.model == "never")
    assert (row.id, row.reason, row.probability) == ("as was set", "rate", 1.0)


def test_what_cannot_be_set_is_refused(bench: Bench) -> None:
    assert asked(bench, "POST", SERVER, {"rate": 2})[0] == 400
    assert asked(bench, "POST", SERVER, {"directory": "/tmp/other"})[0] == 400
    status, told = asked(bench, "POST", "/v2/models/none/tape/setting", {"recording": True})
    assert (status, told["error"]) == (400, "Request for unknown model : none")
    assert asked(bench, "GET", SERVER) == (200, {"recording": True, "rate": 1.0})


def test_without_a_directory_nothing_can_be_switched_on(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double")
    with closing(Bench(tmp_path / "models", tmp_path, tape="")) as bench:
        for method, body in (("GET", None), ("POST", {"recording": True})):
            status, told = asked(bench, method, SERVER, body)
            assert (status, told["error"].split(":")[0]) == (501, "this server records no requests")
