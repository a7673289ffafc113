"""What the in-process API refuses, and what it holds, as Triton's own tests of its API expect it."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

import nereid.inprocess as tritonserver
from tests.server import free_port
from tests.unit.nereid.engine.repositories import add_model

ROW = np.array([1.0, 2.0], np.float32)
FRONTS = [tritonserver.KServeHttp, tritonserver.KServeGrpc, tritonserver.Metrics]
Front = type[tritonserver.KServeHttp]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tritonserver.Server]:
    add_model(tmp_path, "double")
    with tritonserver.Server(model_repository=str(tmp_path)) as server:
        yield server


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("server_id", 1),
        ("model_repository", 1),
        ("exit_timeout", "5"),
        ("strict_readiness", 1),
        ("min_supported_compute_capability", "6"),
    ],
)
def test_an_option_of_another_type_is_a_type_error(tmp_path: Path, option: str, value: Any) -> None:
    server = tritonserver.Server(**{"model_repository": str(tmp_path), option: value})
    with pytest.raises(TypeError):
        server.start()


def test_a_missing_repository_is_an_internal_error(tmp_path: Path) -> None:
    with pytest.raises(tritonserver.InternalError, match=f"^failed to stat file {tmp_path}/foo$"):
        tritonserver.Server(model_repository=[str(tmp_path), f"{tmp_path}/foo"]).start()


@pytest.mark.parametrize("value", [{"test": 1}, None, [1]])
def test_a_parameter_of_another_type_is_refused_at_once(server: tritonserver.Server, value: Any) -> None:
    with pytest.raises(tritonserver.InvalidArgumentError, match="parameter 'invalid' is <class"):
        server.model("double").infer(inputs={"IN": ROW}, parameters={"invalid": value})


@pytest.mark.parametrize(
    ("front", "options"),
    [
        *((front, {"port": -15}) for front in FRONTS),
        *((front, {"port": 65536}) for front in FRONTS),
        (tritonserver.KServeHttp, {"thread_count": 0}),
        (tritonserver.KServeHttp, {"header_forward_pattern": 10}),
        (tritonserver.KServeGrpc, {"keepalive_time_ms": -1}),
        (tritonserver.KServeGrpc, {"http2_max_ping_strikes": -1}),
        (tritonserver.KServeGrpc, {"max_connection_age_grace_ms": -1}),
        (tritonserver.KServeGrpc, {"infer_allocation_pool_size": "big pool"}),
        (tritonserver.KServeGrpc, {"infer_thread_count": -1}),
        (tritonserver.KServeGrpc, {"server_key": 10}),
        (tritonserver.Metrics, {"thread_count": "ten"}),
    ],
)
def test_options_of_a_front_are_checked_when_they_are_made(front: Front, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        front.Options(**options)


@pytest.mark.parametrize("front", FRONTS)
def test_a_front_that_runs_is_not_started_again(server: tritonserver.Server, front: Front) -> None:
    made = front(server, front.Options(port=free_port()))
    with pytest.raises(tritonserver.UnavailableError, match=r"server is not running\.$"):
        made.stop()
    for _ in range(2):
        made.start()
        with pytest.raises(tritonserver.AlreadyExistsError, match=r"server is already running\.$"):
            made.start()
        made.stop()


def test_a_server_may_stop_before_its_fronts(tmp_path: Path) -> None:
    add_model(tmp_path, "double")
    server, port = tritonserver.Server(model_repository=str(tmp_path)).start(), free_port()
    front = tritonserver.KServeHttp(server, tritonserver.KServeHttp.Options(port=port))
    front.start()
    server.stop()
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}")
    with client, pytest.raises(ConnectionRefusedError):
        client.is_server_live()
    front.stop()


def test_an_array_by_dlpack_holds_its_tensor() -> None:
    owner = np.ones(1 << 16)
    tensor = tritonserver.Tensor.from_dlpack(owner)
    assert sys.getrefcount(owner) - 1 == 2
    before = sys.getrefcount(tensor)
    array = np.from_dlpack(tensor)
    assert array.ctypes.data == owner.ctypes.data
    assert sys.getrefcount(tensor) == before + 1
    tensor.shape = [2, 1 << 15]
    assert (array.shape, np.from_dlpack(tensor).shape) == ((1 << 16,), (2, 1 << 15))
    del array
    assert sys.getrefcount(tensor) == before


def test_older_programs_find_private_names() -> None:
    assert tritonserver._api._response.InferenceResponse is tritonserver.InferenceResponse


@pytest.fixture
def records() -> Iterator[list[tuple[Any, ...]]]:
    found: list[tuple[Any, ...]] = []
    handlers = {name: logging.getLogger(name).handlers for name in ("app", "deployments", "backends")}
    yield found
    from app.core.observability.log import receive_records

    receive_records(None)
    for name, before in handlers.items():
        logging.getLogger(name).handlers = before


def test_a_callback_gets_the_records_of_the_log(
    tmp_path: Path, records: list[tuple[Any, ...]], capfd: pytest.CaptureFixture[str]
) -> None:
    add_model(tmp_path, "double")

    def keep(*record: Any) -> None:
        records.append(record)
        raise ValueError("must not reach who logs")

    options: dict[str, Any] = {"model_repository": str(tmp_path), "log_info": True}
    with tritonserver.Server(**options, log_callback=keep) as server:
        with tritonserver.KServeHttp(server, tritonserver.KServeHttp.Options(port=free_port())):
            pass
        logging.getLogger("backends").error("bad \ud800")
        logging.getLogger("app").debug("not asked for")
    (loaded,) = [record for record in records if record[4].startswith("successfully loaded 'double'")]
    level, file, line, microseconds, _ = loaded
    assert (level, file, line > 0) == (tritonserver.LogLevel.INFO, "load_messages.py", True)
    assert abs(microseconds / 1e6 - tmp_path.stat().st_mtime) < 600
    assert [record[0] for record in records if record[4].startswith("bad ")] == [tritonserver.LogLevel.ERROR]
    assert not [record for record in records if record[4] == "not asked for"]
    assert "successfully loaded" not in "".join(capfd.readouterr())
    known = len(records)
    with tritonserver.Server(**options):  # the next server has none
        pass
    assert len(records) == known and "successfully loaded" in capfd.readouterr().out
