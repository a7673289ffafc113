"""Requests of all fronts are recorded, with what clients sent and got."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from app.core.inference import Call, Sink
from app.core.tensors import InferRequest
from app.native.choice import is_native
from app.tape.recording import Tapped
from tests.server import free_port
from tests.unit.app.tape.bench import ROW, Bench
from tests.unit.nereid.engine.repositories import DECOUPLED, FP32, add_ensemble, add_model

SEVERAL = """
for r in requests:
    sender = r.get_response_sender()
    for k in range(3):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r) * k)]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FAILS = "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('no luck')) for r in requests]"
TEXT = FP32.replace("TYPE_FP32", "TYPE_STRING")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    repository, directory = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("tape")
    add_model(repository, "double")
    add_model(repository, "several", SEVERAL, config=FP32 + DECOUPLED)
    add_model(repository, "fails", FAILS)
    add_model(
        repository,
        "echo",
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r))]) for r in requests]",
        config=TEXT,
    )
    add_model(
        repository, "named", config=FP32, files={"tape.yaml": "rate: 1\nfields: {IN: hash}\nreplay: never\n"}
    )
    add_ensemble(repository, "chain", "double", "double")
    openai = free_port()
    with closing(
        Bench(repository, directory, allow_client_shm=True, allow_tfserving=True, openai_port=openai)
    ) as made:
        made.openai_port = openai
        yield made


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_and_answers_are_recorded(bench: Bench, protocol: str) -> None:
    name = f"plain-{protocol}"
    for number in range(3):  # the first is read as any other, later ones by what is known of it
        bench.over(protocol, "double", ROW + number, request_id=f"{name}-{number}")
    rows = bench.rows(3, lambda row: row.id.startswith(name))
    for number, row in enumerate(rows):
        assert (row.model, row.version, row.asked_version, row.reason) == ("double", "1", "", "rate")
        assert (row.probability, row.flags, row.replayable, row.failed) == (1.0, (), True, False)
        assert row.inputs[0].array().tolist() == (ROW + number).tolist()
        (answer,) = row.responses
        assert answer.final and 0 < answer.offset_ns < 10**10
        assert answer.outputs[0].array().tolist() == (2 * (ROW + number)).tolist()
    assert [row.id for row in rows] == [f"{name}-{number}" for number in range(3)]
    assert len({row.key for row in rows}) == 3


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_only_what_clients_ask_for_is_recorded_of_an_ensemble(bench: Bench, protocol: str) -> None:
    before = len(bench.rows(0))
    bench.over(protocol, "chain", request_id=f"chain-{protocol}")
    bench.over(protocol, "double", request_id=f"after-{protocol}")
    bench.rows(1, lambda row: row.id == f"after-{protocol}")
    rows = bench.rows(0)[before:]
    assert [row.model for row in rows] == ["chain", "double"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_failures_are_recorded(bench: Bench, protocol: str) -> None:
    with pytest.raises(InferenceServerException):
        bench.over(protocol, "fails", request_id=f"f-{protocol}")
    with pytest.raises(InferenceServerException):
        bench.over(protocol, "double", np.zeros((1, 2), np.float32), request_id=f"f-{protocol}")
    failed, refused = bench.rows(2, lambda row: row.id == f"f-{protocol}")
    assert (failed.reason, failed.responses[0].code) == ("error", "INTERNAL")
    assert "no luck" in failed.responses[0].error
    assert (refused.reason, refused.responses[0].code, refused.inputs[0].shape) == (
        "error",
        "INVALID_ARG",
        (1, 2),
    )


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_texts_are_recorded_by_size(bench: Bench, protocol: str) -> None:
    bench.over(protocol, "echo", np.array([b"secret"], object), request_id=f"t-{protocol}")
    (row,) = bench.rows(1, lambda row: row.id == f"t-{protocol}")
    for tensor in (row.inputs[0], row.responses[0].outputs[0]):
        assert (tensor.state, tensor.nbytes, bytes(tensor.data)) == ("size", 10, b"")
    assert (row.flags, row.replayable) == (("redacted",), False)
    assert not any(b"secret" in path.read_bytes() for path in bench.directory.rglob("*.open"))


def test_what_tape_yaml_names_is_hashed(bench: Bench) -> None:
    for number in range(2):
        bench.over("http", "named", request_id=f"n-{number}")
    one, other = bench.rows(2, lambda row: row.model == "named")
    assert (one.inputs[0].state, len(one.inputs[0].data), one.inputs[0].nbytes) == ("hash", 16, 8)
    assert bytes(one.inputs[0].data) == bytes(other.inputs[0].data) != ROW.tobytes()
    assert one.flags == ("no-replay", "redacted")


def test_streams_are_recorded_with_the_times_of_their_responses(bench: Bench) -> None:
    found: list[object] = []
    given = tritonclient.grpc.InferInput("IN", [2], "FP32")
    given.set_data_from_numpy(ROW)
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{bench.grpc_port}") as client:
        client.start_stream(lambda result, error: found.append(error or result))
        client.async_stream_infer("several", [given], request_id="stream")
        client.stop_stream()
    (row,) = bench.rows(1, lambda row: row.id == "stream")
    assert len(found) == 3
    assert [len(each.outputs) for each in row.responses] == [1, 1, 1, 0]
    assert [each.outputs[0].array().tolist() for each in row.responses[:3]] == [[0, 0], [1, 2], [2, 4]]
    offsets = [each.offset_ns for each in row.responses]
    assert offsets == sorted(offsets) and [each.final for each in row.responses] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v2/models/double/infer",
            {"id": "j", "inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]},
        ),
        ("/v2/models/double/generate", {"id": "g", "IN": [1, 2]}),
    ],
)
def test_json_is_recorded_as_tensors(bench: Bench, path: str, body: dict[str, object]) -> None:
    post(bench.port, path, body)
    (row,) = bench.rows(1, lambda row: row.id == body["id"])
    assert row.inputs[0].array().tolist() == [1, 2]
    assert row.responses[0].outputs[0].array().tolist() == [2, 4]


def test_tensorflow_servings_requests_are_recorded(bench: Bench) -> None:
    before = {row.key for row in bench.rows(0)}
    post(bench.port, "/v1/models/double:predict", {"inputs": {"IN": [3.0, 4.0]}})
    (row,) = bench.rows(1, lambda row: row.key not in before)
    assert (row.model, row.inputs[0].array().tolist()) == ("double", [3, 4])
    assert row.responses[0].outputs[0].array().tolist() == [6, 8]


def test_openais_requests_are_recorded(bench: Bench) -> None:
    before = {row.key for row in bench.rows(0)}
    post(bench.openai_port, "/v1/completions", {"model": "echo", "prompt": "a prompt"})
    (row,) = bench.rows(1, lambda row: row.key not in before)
    assert (row.model, row.inputs[0].datatype, row.inputs[0].state) == ("echo", "BYTES", "size")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("offset", [8, 0], ids=["beside", "in place"])
def test_tensors_in_memory_of_clients_are_recorded(bench: Bench, protocol: str, offset: int) -> None:
    module, client = getattr(tritonclient, protocol), getattr(bench, protocol)
    key, name = f"/nereid-{uuid.uuid4().hex}", f"{protocol}-{offset}"
    handle = shm.create_shared_memory_region(name, key, 16)
    try:
        client.register_system_shared_memory(name, key, 16)
        shm.set_shared_memory_region(handle, [ROW])
        given, wanted = module.InferInput("IN", [2], "FP32"), module.InferRequestedOutput("OUT")
        given.set_shared_memory(name, 8)
        wanted.set_shared_memory(name, 8, offset=offset)
        client.infer("double", [given], outputs=[wanted], request_id=name)
        shm.set_shared_memory_region(handle, [np.zeros(4, np.float32)])  # they are the client's again
        (row,) = bench.rows(1, lambda row: row.id == name)
        assert row.inputs[0].array().tolist() == ROW.tolist()
        assert row.responses[0].outputs[0].array().tolist() == (2 * ROW).tolist()
        assert (row.requested, row.flags) == (("OUT",), ())
    finally:
        client.unregister_system_shared_memory(name)
        shm.destroy_shared_memory_region(handle)


def post(port: int, path: str, body: dict[str, object]) -> None:
    with closing(HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
        assert answer.status == 200, told


@pytest.mark.skipif(not is_native("auto"), reason="the data plane is not compiled")
@pytest.mark.parametrize(("protocol", "sink"), [("http", "Matched"), ("grpc", "CallSink")])
def test_compiled_ways_are_taken_beside_a_tape(bench: Bench, protocol: str, sink: str) -> None:
    entry, seen = bench.engine.entry("double"), list[str]()
    target = entry.target

    class Spy:
        available = True

        def submit(self, request: InferRequest, sink: Sink) -> Call:
            seen.append(type(sink).__name__)
            return target.submit(request, sink)

    vars(entry)["target"] = Spy()
    try:
        for number in range(5):
            bench.over(protocol, "double", ROW + number, request_id=f"c-{protocol}")
    finally:
        vars(entry)["target"] = target
    assert type(target) is Tapped
    assert seen[1:] == [sink] * 4  # Python reads the first, and the others are known by it
    assert len(bench.rows(5, lambda row: row.id == f"c-{protocol}")) == 5


def test_nothing_was_dropped(bench: Bench) -> None:
    assert bench.dropped() == 0
