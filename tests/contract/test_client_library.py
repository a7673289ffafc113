"""`nereid_client` over both protocols, waiting and with asyncio; beside tritonserver in `tests/peer`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http

from nereid_client import InputError, Model, Server, ServerError, connect, connect_async
from tests.contract.conftest import Addresses
from tests.server import ROOT

ROWS = np.arange(32, dtype=np.int32).reshape(2, 16)
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module", params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server: Addresses) -> str:
    return f"{request.param}://{getattr(server, request.param)}"


@pytest.fixture
def connected(url: str) -> Iterator[Server]:
    with connect(url, timeout=30) as server:
        yield server


@pytest.fixture
def simple(connected: Server) -> Model:
    return connected.model("simple")


def test_health(connected: Server) -> None:
    assert connected.live() and connected.ready() and connected.ready("simple")
    assert not connected.ready("nobody")
    connected.wait_ready("simple", "1")
    assert connected.metadata()["name"]


def test_batch(simple: Model) -> None:
    result = simple(INPUT0=ROWS, INPUT1=ROWS)
    assert set(result) == {"OUTPUT0", "OUTPUT1"} and result.model == "simple" and result.version == "1"
    np.testing.assert_array_equal(result["OUTPUT0"], ROWS + ROWS)
    assert result["OUTPUT1"].dtype == np.int32 and not result["OUTPUT1"].any()


def test_row_without_a_batch_dimension(simple: Model) -> None:
    result = simple({"INPUT0": list(range(16)), "INPUT1": ROWS[0]})
    assert result["OUTPUT0"].tolist() == [2 * n for n in range(16)]


def test_one_output_and_an_id(simple: Model) -> None:
    result = simple.options(outputs=("OUTPUT1",), id="mine")(INPUT0=ROWS, INPUT1=ROWS)
    assert list(result) == ["OUTPUT1"] and result.id == "mine"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"INPUT0": ROWS}, "input 'INPUT1' is missing. The model takes INPUT0 INT32"),
        ({"INPUT0": ROWS, "INPUT2": ROWS}, "no input 'INPUT2', did you mean 'INPUT"),
        ({"INPUT0": ROWS.astype(np.float32), "INPUT1": ROWS}, "convert it with .astype('int32')"),
        ({"INPUT0": ROWS[:, :3], "INPUT1": ROWS}, "cannot take an array of shape [2, 3]"),
        ({"INPUT0": ROWS, "INPUT1": ROWS[0]}, "'INPUT0' has a batch dimension and 'INPUT1' has none"),
    ],
)
def test_values_that_do_not_fit(simple: Model, values: dict[str, object], text: str) -> None:
    with pytest.raises(InputError) as caught:
        simple(values)
    assert text in str(caught.value)


def test_error_of_the_server(connected: Server, simple: Model) -> None:
    with pytest.raises(ServerError) as caught:
        connected.model("nobody")(X=1)
    assert "nobody" in caught.value.message and caught.value.code in ("NOT_FOUND", "INVALID_ARGUMENT")
    rows = np.zeros((9, 16), np.int32)
    with pytest.raises(ServerError, match="batch-size must be <= 8") as caught:
        simple(INPUT0=rows, INPUT1=rows)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_every_datatype(connected: Server) -> None:
    model = connected.model("identity_all")
    for name, spec in model.signature().inputs.items():
        kind = name.removeprefix("INPUT_")
        values = ["a", b"\0\xff", ""] if kind == "BYTES" else [1, 0, 1]
        result = model({name: [values]})[f"OUTPUT_{kind}"]
        assert result.shape == (1, 3), spec
        assert result.tolist() == [[b"a", b"\0\xff", b""] if kind == "BYTES" else values]


def test_best_classes(connected: Server) -> None:
    picture = (ROOT / "tests/data/coffee.jpg").read_bytes()
    model = connected.model("efficientnet_ensemble")
    scores = model(image=picture)["probabilities"]
    best = model.options(classes=3)(image=picture).top()
    assert [entry.index for entry in best] == np.argsort(-scores)[:3].tolist()
    assert best[0].label and best[0].score == pytest.approx(float(scores.max()), rel=1e-4)


def test_map_keeps_the_order(simple: Model) -> None:
    values = [{"INPUT0": ROWS + n, "INPUT1": ROWS} for n in range(40)]
    results = simple.map(values, concurrency=8)
    assert [int(result["OUTPUT1"][0, 0]) for result in results] == list(range(40))


def test_submit(simple: Model) -> None:
    futures = [simple.submit(INPUT0=ROWS, INPUT1=ROWS - n) for n in range(8)]
    assert [int(future.result()["OUTPUT1"][0, 0]) for future in futures] == list(range(8))


def test_stream(connected: Server) -> None:
    model = connected.model("repeat_int32")
    delays = np.zeros(3, np.uint32)
    parts = list(model.stream(IN=[5, 6, 7], DELAY=delays, WAIT=[0]))
    assert [part["OUT"].tolist() for part in parts] == [[5], [6], [7]]
    assert parts[0]["OUT"].dtype == np.int32
    with pytest.raises(InputError, match=r"decoupled: call its stream\(\)"):
        model(IN=[5], DELAY=delays, WAIT=[0])


def test_abandoned_stream(connected: Server) -> None:
    parts = connected.model("repeat_int32").stream(IN=range(50), DELAY=[100] * 50, WAIT=[0])
    assert next(parts)["OUT"].tolist() == [0]
    parts.close()
    assert connected.ready()


def test_sequence(connected: Server) -> None:
    model = connected.model("simple_sequence")
    with model.sequence() as sequence:
        assert [int(sequence(INPUT=[n])["OUTPUT"][0]) for n in (1, 2)] == [2, 2]
    with pytest.raises(InputError, match="has ended"):
        sequence(INPUT=[3])
    with model.sequence() as sequence:
        assert int(sequence(INPUT=[5], last=True)["OUTPUT"][0]) == 6


def test_pool(connected: Server, simple: Model) -> None:
    with connected.pool(slots=2, slot_bytes="4KiB") as pool:
        fast = simple.via(pool)
        kept = [fast(INPUT0=ROWS, INPUT1=ROWS - n) for n in range(2)]  # as many as there are slots
        assert int(fast(INPUT0=ROWS, INPUT1=ROWS - 2)["OUTPUT1"][0, 0]) == 2  # in the body
        assert [int(result["OUTPUT1"][0, 0]) for result in kept] == [0, 1]
        assert pool.missed == 1
        array = kept.pop()["OUTPUT0"]
        kept[0].close()
        for n in range(20):  # slots come back by themselves
            np.testing.assert_array_equal(fast(INPUT0=ROWS, INPUT1=ROWS + n)["OUTPUT1"], np.full((2, 16), -n))
        np.testing.assert_array_equal(array, ROWS + ROWS - 1)  # nobody else wrote there
        assert pool.missed < 5  # a slot is free a moment after its arrays are gone
        assert (SHARED_MEMORY / pool.region).exists()
    assert not (SHARED_MEMORY / pool.region).exists()


def test_what_does_not_fit_into_a_slot_goes_in_the_body(connected: Server) -> None:
    model = connected.model("identity_all")
    with connected.pool(slots=1, slot_bytes=64) as pool:
        data = np.arange(1000, dtype=np.float32)[None]
        np.testing.assert_array_equal(model.via(pool)(INPUT_FP32=data)["OUTPUT_FP32"], data)
        assert model.via(pool)(INPUT_BYTES=[["x"]])["OUTPUT_BYTES"].tolist() == [[b"x"]]


def test_pool_after_a_restart_of_the_server(server: Addresses, connected: Server, simple: Model) -> None:
    with connected.pool(slots=1, slot_bytes="4KiB") as pool:
        fast = simple.via(pool)
        fast(INPUT0=ROWS, INPUT1=ROWS).close()
        with tritonclient.http.InferenceServerClient(server.http) as other:
            other.unregister_system_shared_memory(pool.region)  # forgotten, as by a server that starts anew
        np.testing.assert_array_equal(fast(INPUT0=ROWS, INPUT1=ROWS)["OUTPUT0"], ROWS + ROWS)


async def test_asyncio(url: str) -> None:
    async with connect_async(url, timeout=30) as server:
        assert await server.ready("simple")
        simple = server.model("simple")
        np.testing.assert_array_equal((await simple(INPUT0=ROWS, INPUT1=ROWS))["OUTPUT0"], ROWS + ROWS)
        results = [result async for result in simple.map([{"INPUT0": ROWS, "INPUT1": ROWS}] * 5)]
        assert len(results) == 5
        parts = server.model("square_int32").stream(IN=[3])
        assert [part["OUT"].tolist() async for part in parts] == [[3]] * 3
        async with server.model("simple_sequence").sequence() as sequence:
            assert int((await sequence(INPUT=[1]))["OUTPUT"][0]) == 2
        async with server.pool(2) as pool:
            with await simple.via(pool)(INPUT0=ROWS, INPUT1=ROWS) as result:
                np.testing.assert_array_equal(result["OUTPUT0"], ROWS + ROWS)
