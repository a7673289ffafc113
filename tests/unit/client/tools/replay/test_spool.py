"""What is sent of recorded requests."""

import json
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from nereid_client.tape.rows import Row, TapeTensor
from nereid_client.tools.perf.options import Address
from nereid_client.tools.replay.options import ReplayError
from nereid_client.tools.replay.plan import plan_of
from nereid_client.tools.replay.spool import Spool, Target
from tests.unit.client.tape.made import row, tensor

HTTP, GRPC = Address("http", "localhost", 8000), Address("grpc", "localhost", 8001)


def sent(path: Path, target: Target, rows: list[Row], most: int = 1 << 20) -> tuple[Spool, list[bytes]]:
    """The spool of these rows, and its payloads."""
    spool = Spool(path / "spool", target, plan_of(rows), most)
    try:
        for each in rows:
            spool.add(each)
    finally:
        spool.close()
    data = (path / "spool").read_bytes()
    return spool, [data[offset : offset + size] for _, offset, size, _, _ in spool.requests.tolist()]


def http_request_of(payload: bytes) -> tuple[str, Any, bytes]:
    """Its path, the JSON of its body, and the binary part of that."""
    head, _, body = payload.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    size = int(headers["Inference-Header-Content-Length"])
    assert int(headers["Content-Length"]) == len(body)
    return head.split(b" ")[1].decode(), json.loads(body[:size]), body[size:]


def test_a_request_over_http(tmp_path: Path) -> None:
    given = row(id="r1", asked_version="3", version="3", requested=("OUT",), priority=2, timeout_us=7)
    target = Target(HTTP, {"X-Key": "v"}, models={"simple": "a b"})
    _, (payload,) = sent(tmp_path, target, [given])
    path, head, data = http_request_of(payload)
    assert path == "/v2/models/a%20b/versions/3/infer" and b"X-Key: v" in payload
    assert data == b"\0\0\x80?" and head["id"] == "r1"
    assert head["parameters"] == {"priority": 2, "timeout": 7}
    assert head["outputs"] == [{"name": "OUT", "parameters": {"binary_data": True}}]


def test_a_request_over_grpc(tmp_path: Path) -> None:
    given = row(id="r1", asked_version="3", requested=("OUT",), parameters={"user": "me", "deep": True})
    spool, (payload,) = sent(tmp_path, Target(GRPC, version="4", decoupled=frozenset({"simple"})), [given])
    message = pb.ModelInferRequest.FromString(payload[5:])
    assert int.from_bytes(payload[1:5]) == len(payload) - 5
    assert (message.model_name, message.model_version, message.id) == ("simple", "4", "r1")
    assert message.raw_input_contents == [b"\0\0\x80?"] and message.outputs[0].name == "OUT"
    assert message.parameters["user"].string_param == "me" and message.parameters["deep"].bool_param
    assert spool.requests[:, 4].tolist() == [1], "a decoupled model is asked for a stream"


def test_versions_that_had_answered_are_asked_for_by_name(tmp_path: Path) -> None:
    rows = [row(1, version="2"), row(2, version="3"), row(3, model="other", version="2")]
    target = Target(HTTP, recorded=frozenset({("simple", "2")}))
    _, payloads = sent(tmp_path, target, rows)
    assert [http_request_of(each)[0] for each in payloads] == [
        "/v2/models/simple/versions/2/infer",
        "/v2/models/simple/infer",
        "/v2/models/other/infer",
    ]


@pytest.mark.parametrize("name", [7, "seven"])
def test_sequences_have_ids_of_their_own_in_each_run(tmp_path: Path, name: int | str) -> None:
    rows = [
        row(1, sequence_id=name, sequence_start=True),
        row(2, sequence_id=name, sequence_end=True),
        row(3, sequence_id=name, sequence_start=True),
    ]
    found = []
    for _ in range(2):
        _, payloads = sent(tmp_path, Target(HTTP), rows)
        found.append([http_request_of(each)[1]["parameters"] for each in payloads])
    ids = [[each["sequence_id"] for each in run] for run in found]
    assert all(isinstance(each, type(name)) and each != name for run in ids for each in run)
    assert ids[0][0] == ids[0][1] != ids[0][2] == ids[0][3] and not set(ids[0]) & set(ids[1])
    assert [each["sequence_start"] for each in found[0]] == [True, False, True, False]
    assert [each["sequence_end"] for each in found[0]] == [False, True, False, True]


def test_sequence_without_an_end_is_ended_behind_its_last_step(tmp_path: Path) -> None:
    """It would keep its place in the server, and others would wait until that gives it up."""
    rows = [
        row(1, sequence_id=7, sequence_start=True),
        row(2, sequence_id=8, sequence_start=True),
        row(3, sequence_id=7),
        row(4, sequence_id=8, sequence_end=True),
        row(5),
    ]
    spool, payloads = sent(tmp_path, Target(HTTP), rows)
    assert spool.requests[:, 0].tolist() == [0, 1, 2, -3, 3, 4] and spool.rows.tolist() == [0, 1, 2, 2, 3, 4]
    last, end = (http_request_of(payloads[at])[1] for at in (2, 3))
    assert not last["parameters"]["sequence_end"] and end["parameters"]["sequence_end"]
    assert last["parameters"]["sequence_id"] == end["parameters"]["sequence_id"]
    assert last["inputs"] == end["inputs"], "which it needs, as any request"


def test_what_no_client_can_have_sent_is_refused_and_counted(tmp_path: Path) -> None:
    wild = TapeTensor("IN", "FP32", (1 << 70,), b"\0\0\0\0", 4)
    rows = [row(1, inputs=(wild,)), row(2, parameters={"much": 1 << 80}), row(3)]
    spool, payloads = sent(tmp_path, Target(GRPC), rows)
    assert len(payloads) == 1 and spool.refused.total() == 2
    assert all(text.startswith("no request of grpc: ") for text in spool.refused)


def test_requests_have_a_bound_on_the_disk(tmp_path: Path) -> None:
    large = row(1, inputs=(tensor("IN", bytes(3000)),))
    with pytest.raises(ReplayError, match="--max-mb"):
        sent(tmp_path, Target(HTTP), [large], most=2000)
