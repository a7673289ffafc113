"""`nereid_client` with both servers: the same calls, the same answers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid_client import Server, ServerError, connect
from tests.peer.conftest import Peer, Tritonserver
from tests.server import wait_until

ROWS = np.arange(32, dtype=np.int32).reshape(2, 16)


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["ours", "theirs"])
def connected(
    request: pytest.FixtureRequest, ours: Peer, theirs: Tritonserver, protocol: str
) -> Iterator[Server]:
    theirs.revive()
    peer = ours if request.param == "ours" else theirs.peer
    with connect(f"{protocol}://{peer.http if protocol == 'http' else peer.grpc_url}", timeout=30) as server:
        yield server


def test_batch_and_row(connected: Server) -> None:
    sums = connected.model("sums")
    np.testing.assert_array_equal(sums(INPUT0=ROWS, INPUT1=ROWS)["OUTPUT0"], ROWS + ROWS)
    assert sums(INPUT0=ROWS[0], INPUT1=range(16))["OUTPUT1"].tolist() == [0] * 16


def test_every_datatype(connected: Server) -> None:
    model = connected.model("types")
    for name in model.signature().inputs:
        kind = name.removeprefix("INPUT_")
        values = ["a", b"\0\xff", ""] if kind == "BYTES" else [1, 0, 1]
        wanted = [b"a", b"\0\xff", b""] if kind == "BYTES" else values
        result = model.options(outputs=(f"OUTPUT_{kind}",))({name: [values]})
        assert result[f"OUTPUT_{kind}"].tolist() == [wanted]


def test_error(connected: Server) -> None:
    rows = np.zeros((9, 16), np.int32)
    with pytest.raises(ServerError, match="batch-size must be <= 8") as caught:
        connected.model("sums")(INPUT0=rows, INPUT1=rows)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_best_classes(connected: Server) -> None:
    best = connected.model("sums").options(classes=2, outputs=("OUTPUT0",))(INPUT0=ROWS, INPUT1=ROWS).top()
    assert [[entry.index for entry in row] for row in best] == [[15, 14], [15, 14]]


def test_sequence(connected: Server) -> None:
    with connected.model("adder").sequence() as sequence:
        assert [int(sequence(INPUT=[n])["OUTPUT"][0]) for n in (1, 2, 3)] == [1, 3, 6]


def test_stream(connected: Server) -> None:
    parts = connected.model("square_int32").stream(IN=[3])
    assert [part["OUT"].tolist() for part in parts] == [[3]] * 3


def test_load_of_another_configuration(connected: Server) -> None:
    before = connected.model("sums").described()[1]
    connected.load("sums", {**before, "max_batch_size": 2})
    try:
        assert connected.model("sums").described()[1]["max_batch_size"] == 2
        with pytest.raises(ServerError, match="batch-size must be <= 2"):
            connected.model("sums")(INPUT0=np.zeros((3, 16), np.int32), INPUT1=np.zeros((3, 16), np.int32))
    finally:
        connected.load("sums", before)
    with pytest.raises(ServerError, match="failed to load 'nobody', failed to poll from model repository"):
        connected.load("nobody")


def listed(server: Server, name: str) -> list[Mapping[str, Any]]:
    return [model for model in server.index() if model["name"] == name]


def test_load_unload_and_index(connected: Server) -> None:
    assert listed(connected, "word") == [{"name": "word", "version": "1", "state": "READY", "reason": ""}]
    connected.unload("word")
    try:
        wait_until(lambda: not connected.ready("word"), 10, "the model is unloaded")
        wait_until(lambda: listed(connected, "word")[0]["state"] == "UNAVAILABLE", 10, "the index says so")
        assert listed(connected, "word")[0]["reason"] == "unloaded"
    finally:
        connected.load("word")
    assert connected.ready("word") and listed(connected, "word")[0]["reason"] == ""


def test_statistics(connected: Server) -> None:
    before = connected.statistics("sums")[0]["inference_count"]
    connected.model("sums")(INPUT0=ROWS, INPUT1=ROWS)

    def counted() -> bool:  # tritonserver counts a request after it was answered
        (after,) = connected.statistics("sums", "1")
        return (after["inference_count"], after["inference_stats"]["fail"]["ns"]) == (before + 2, 0)

    wait_until(counted, 5, "the two inferences are counted")


def test_the_server_describes_itself(connected: Server) -> None:
    assert connected.live() and connected.metadata()["name"] == "triton"
    metadata, config = connected.model("sums").described()
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    assert (config["input"][0]["data_type"], config["input"][0]["dims"]) == ("TYPE_INT32", [16])


def test_priority_and_parameters(connected: Server) -> None:
    model = connected.model("sums").options(parameters={"a": 1, "b": True, "c": "x"}, hedge=True, id="mine")
    result = model(INPUT0=ROWS, INPUT1=ROWS)
    assert result.id == "mine" and result.copy()["OUTPUT0"].tolist() == (ROWS + ROWS).tolist()


def test_pool(connected: Server) -> None:
    sums = connected.model("sums")
    with connected.pool(slots=2, slot_bytes="4KiB") as pool:
        for n in range(10):
            result = sums.via(pool)(INPUT0=ROWS, INPUT1=ROWS + n)
            np.testing.assert_array_equal(result["OUTPUT1"], np.full((2, 16), -n))
    assert not (Path("/dev/shm") / pool.region).exists()
