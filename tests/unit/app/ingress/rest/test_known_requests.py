"""Requests that are recognised beside Python's reading: the same requests, the same responses, or nothing."""

import gc
import json
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as mc

from app.access.grants import Grants
from app.core.errors import unavailable
from app.core.inference import Call, Sink
from app.core.rollout.split import Split
from app.core.tensors import InferRequest, Tensor, failed
from app.ingress.access.guard import Guard
from app.protocol.restrictions import Restriction, Restrictions
from app.routing.table import VersionEntry
from app.settings.fronts import Http1Settings, HttpSettings
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.http_peer import INFER, binary_infer, infer_document, request
from tests.unit.app.ingress.two_planes import Plane, Planes, alike

extension = pytest.importorskip("app.native.extension")

AGENT = "User-Agent: " + "a" * 40
"""Makes a head as long as those of clients are."""
ARRAY = np.arange(16, dtype=np.float32).reshape(1, 16)
SEQUENCE = {"sequence_id": 1, "sequence_start": True}
CLASSIFIED = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
WITH_OUTPUTS = {"outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}


def document(*headers: str, **fields: Any) -> bytes:
    return request(INFER, json.dumps(fields).encode(), AGENT, *headers)


def with_data(datatype: str, data: Any, shape: Sequence[int] | None = None, **fields: Any) -> bytes:
    shape = [1, len(data)] if shape is None else shape
    return document(inputs=[{"name": "INPUT0", "shape": shape, "datatype": datatype, "data": data}], **fields)


def with_id(identifier: str, array: np.ndarray = ARRAY) -> bytes:
    entry = {"name": "INPUT0", "shape": array.shape, "datatype": "FP32"}
    header = {
        "id": identifier,
        "inputs": [{**entry, "parameters": {"binary_data_size": array.nbytes}}],
        **WITH_OUTPUTS,
    }
    text = json.dumps(header).encode()
    return request(INFER, text + array.tobytes(), f"Inference-Header-Content-Length: {len(text)}", AGENT)


def is_known(sink: object) -> bool:
    """Return whether a request with this sink was recognised."""
    return type(sink).__name__ == "Matched"


@pytest.fixture(scope="module")
def planes() -> Planes:
    return Planes()


RECOGNISED = {
    "binary": (binary_infer(ARRAY, AGENT), binary_infer(-ARRAY, AGENT)),
    "version": (
        binary_infer(ARRAY, AGENT, path="/v2/models/identity/versions/1/infer"),
        binary_infer(ARRAY / 3, AGENT, path="/v2/models/identity/versions/1/infer"),
    ),
    "larger than what is copied": (
        binary_infer(np.zeros((1, 4000), np.float32), AGENT),
        binary_infer(np.ones((1, 4000), np.float32), AGENT),
    ),
    "id": (with_id("abc"), with_id("x y")),
    "id in JSON": (with_data("FP32", [1, 2], id="abc"), with_data("FP32", [3, 4], id="d/f")),
    "numbers": (with_data("FP32", [1.5, -2.5]), with_data("FP32", [0.1, -1e-7])),
    "no number": (with_data("FP32", [1.5, 2.5]), with_data("FP32", [1e39, 1.0])),
    "other places": (with_data("INT32", [1, 222]), with_data("INT32", [111, 2])),
    "nested": (with_data("INT64", [[1, 2], [3, 4]], [2, 2]), with_data("INT64", [[5, 6], [7, 8]], [2, 2])),
    "truncated": (with_data("INT8", [1, 200]), with_data("INT8", [3, 999])),
    "bool": (with_data("BOOL", [True, False, True]), with_data("BOOL", [False, True, True])),
    "strings": (with_data("BYTES", ["a", "]b", "c"]), with_data("BYTES", ["a", '"', "["])),
    "empty": (with_data("FP32", [], [0, 1], id="a"), with_data("FP32", [], [0, 1], id="b")),
    "sequence": (
        with_data("INT32", [1], parameters=SEQUENCE),
        with_data("INT32", [2], parameters={**SEQUENCE, "sequence_id": 7}),
    ),
    "empty id": (with_data("FP32", [10], id="ab"), with_data("FP32", [1000], id="")),
    "classification": (
        with_data("FP32", [1, 2], outputs=CLASSIFIED),
        with_data("FP32", [2, 1], outputs=CLASSIFIED),
    ),
    "nine inputs": (
        document(inputs=[{**infer_document([n])["inputs"][0], "name": f"INPUT{n}"} for n in range(9)]),
        document(inputs=[{**infer_document([1])["inputs"][0], "name": f"INPUT{n}"} for n in range(9)]),
    ),
    "long": (with_data("FP32", [1.0] * 4000), with_data("FP32", [2.5] * 4000)),
    "parameters": (
        with_data("FP32", [1], parameters={"id": "id", "n": 1}),
        with_data("FP32", [2], parameters={"id": "id", "n": 1}),
    ),
    "two": (
        document(inputs=[{**infer_document([n])["inputs"][0], "name": f"INPUT{n}"} for n in (0, 1)]),
        document(inputs=[{**infer_document([n + 2])["inputs"][0], "name": f"INPUT{n}"} for n in (0, 1)]),
    ),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_requests_that_look_like_one_before(planes: Planes, name: str) -> None:
    first, second = alike(*RECOGNISED[name])
    assert first != second and len(first) == len(second)
    planes.learn(first)
    assert planes.ask(second) == (planes.ask(second)[0], True)


READ = {
    "escaped id": (with_data("FP32", [1], id="abcd"), with_data("FP32", [1], id="a\n1")),
    "wrong type": (with_data("INT32", [10, 1]), with_data("INT32", [1.5, 1])),
    "one too few": (with_data("INT32", [10, 1, 1], [1, 3]), with_data("INT32", [1022, 1], [1, 3])),
    "object": (with_data("INT32", [10, 1]), with_data("INT32", [{}, 11])),
    "not JSON": (with_data("INT32", [10, 1]), with_data("INT32", [10, 1]).replace(b"[10,", b"[01,")),
    "NaN": (with_data("FP32", [100, 1]), with_data("FP32", [float("nan"), 1])),
    "no dimensions": (with_data("FP32", [7], []), with_data("FP32", [8], [])),
    "equal keys": (with_data("INT32", [1]).replace(b'"shape"', b'"shape": [1], "shape"'),) * 2,
    "raw": (request(INFER, ARRAY.tobytes(), "Inference-Header-Content-Length: 0", AGENT),) * 2,
    "compressed": (binary_infer(ARRAY, AGENT, "Accept-Encoding: gzip"),) * 2,
    "closed": (binary_infer(ARRAY, AGENT, "Connection: close"),) * 2,
    "HTTP/1.0": (binary_infer(ARRAY, AGENT, "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),) * 2,
    "no model": (binary_infer(ARRAY, AGENT, path="/v2/models/none/infer"),) * 2,
    "short": (request(INFER, b'{"inputs":[]}'),) * 2,
    "very long": (with_data("FP32", [1.0] * 20_000),) * 2,
    "pipelined": (binary_infer(ARRAY, AGENT) * 2,) * 2,
}


@pytest.mark.parametrize("name", READ)
def test_other_requests_are_read_by_python(planes: Planes, name: str) -> None:
    first, second = alike(*READ[name])
    for _ in range(4):
        planes.ask(first)
    assert not planes.ask(second)[1]


def test_headers_that_decide_nothing_may_differ(planes: Planes) -> None:
    planes.learn(binary_infer(ARRAY, AGENT))
    for more in ("traceparent: 00-1-2-01", "X-Request-Id: 7", "X-Odd: \xe4 b\t", "accept: */*"):
        assert planes.ask(binary_infer(ARRAY, more, AGENT.replace("a", "b")))[1]


@pytest.mark.parametrize(
    "header",
    [
        "Accept-Encoding: gzip",
        "Connection: close",
        "Content-Encoding: x",
        "Expect: 100-continue",
        "x-key: other",
    ],
)
def test_headers_that_decide_something_tell_requests_apart(header: str) -> None:
    restricted: Restrictions = {"inference": Restriction("X-Key", "secret")}
    planes = Planes(HttpSettings(restrictions=restricted))
    data = binary_infer(ARRAY, AGENT, "X-Key: secret")
    planes.learn(data)
    head, _, body = data.partition(b"\r\n\r\n")
    if header.startswith("x-key"):
        head = head.replace(b"X-Key: secret", header.encode())
    else:
        head += b"\r\n" + header.encode()
    assert not planes.ask(head + b"\r\n\r\n" + body)[1]


@pytest.mark.parametrize("limits", [Http1Settings(max_head_bytes=1024), Http1Settings(max_body_bytes=300)])
def test_requests_beyond_a_limit_are_left_to_python(limits: Http1Settings) -> None:
    planes = Planes(HttpSettings(http1=limits))
    planes.learn(binary_infer(ARRAY, AGENT))
    longer = binary_infer(np.zeros((1, 64), np.float32), AGENT, "X-Long: " + "a" * 1000)
    assert not planes.ask(longer)[1]


@pytest.mark.parametrize(
    "line", [b"a b: c", b": c", b"a", b"a: \x01", b"a: b\nc: d", b" folded", b"a\xe4: b", b"a: b\x7f"]
)
def test_a_head_that_is_not_well_formed_is_left_to_python(planes: Planes, line: bytes) -> None:
    data = binary_infer(ARRAY, AGENT)
    planes.learn(data)
    assert not planes.ask(data.replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n\r\n", 1))[1]


@pytest.fixture
def known(planes: Planes) -> Plane:
    """A plane that recognises the request `binary`."""
    planes.learn(RECOGNISED["binary"][0])
    planes.native.connect()
    return planes.native


def test_a_client_that_disconnects_cancels_its_request(known: Plane) -> None:
    ((asked, sink),) = known.receive(RECOGNISED["binary"][0])
    assert not known.fake.calls[-1].cancelled
    known.disconnect()
    assert known.fake.calls[-1].cancelled
    sink(known.fake.answer(asked))
    assert known.taken() == b""


def test_a_request_that_cannot_be_submitted_is_answered(known: Plane) -> None:
    def refuse(*_: Any) -> Any:
        raise unavailable("no replica")

    with patch.object(known.fake, "submit", refuse):
        assert known.receive(RECOGNISED["binary"][0]) == []
    assert known.taken().startswith(b"HTTP/1.1 503 Service Unavailable")
    assert len(known.receive(RECOGNISED["binary"][0])) == 1


def test_the_last_response_of_a_draining_server_closes_the_connection(known: Plane) -> None:
    ((asked, sink),) = known.receive(RECOGNISED["binary"][0])
    known.connection.drain()
    sink(known.fake.answer(asked))
    assert b"Connection: close\r\n" in known.taken()
    assert known.transport.closed


def test_requests_sent_ahead_wait_for_the_response(known: Plane) -> None:
    ((asked, sink),) = known.receive(RECOGNISED["binary"][0])
    assert known.receive(RECOGNISED["binary"][1]) == []
    sink(known.fake.answer(asked))
    known.taken()
    assert len(known.fake.held) == 1


def test_a_request_in_two_parts_is_not_taken_for_a_known_one(known: Plane) -> None:
    data = RECOGNISED["binary"][0]
    assert known.receive(data[:300]) == []
    ((asked, _),) = known.receive(data[300:])
    assert bytes(asked.inputs[0].data) == ARRAY.tobytes()


def test_traced_requests_are_read(known: Plane) -> None:
    observer = known.front._context.observer

    def observe(service: FakeService, entry: VersionEntry, asked: InferRequest, sink: Sink, _: Any) -> Call:
        return service.submit(entry, asked, sink)

    with patch.multiple(observer, enabled=True, observe=observe):
        ((_, sink),) = known.receive(RECOGNISED["binary"][0])
    assert not is_known(sink)


def test_requests_to_a_model_in_a_rollout_are_read(known: Plane) -> None:
    split = Split("r", "identity", 1, 2)
    entry = msgspec.structs.replace(known.fake.resolve("identity"), split=split)
    with patch.object(known.fake, "resolve_single", lambda *_: entry):
        ((_, sink),) = known.receive(RECOGNISED["binary"][0])
    assert not is_known(sink)


def test_requests_to_a_model_that_refuses_them_are_read(known: Plane) -> None:
    decoupled = mc.ModelConfig(model_transaction_policy=mc.ModelTransactionPolicy(decoupled=True))
    with patch.object(known.fake, "config", decoupled):
        assert known.receive(RECOGNISED["binary"][0]) == []
    assert b"decoupled transaction policy" in known.taken()


def test_guarded_requests_are_read() -> None:
    plane = Plane("native", HttpSettings(), guard=Guard(Grants([]), None))
    for _ in range(4):
        assert plane.receive(RECOGNISED["binary"][0]) == []
        assert plane.taken().startswith(b"HTTP/1.1 401 Unauthorized")


def test_nothing_is_left_behind(planes: Planes) -> None:
    names = ("binary", "id", "numbers")
    for name in names:
        planes.learn(RECOGNISED[name][0])
    plane = planes.native
    plane.connect()
    fits, odd = [planes.python.fake.answer, lambda _: failed(unavailable("gone"))]

    def run() -> None:
        for name in names:
            for data in RECOGNISED[name]:
                for answer in (fits, odd):
                    ((asked, sink),) = plane.receive(data)
                    sink(answer(asked))
                    plane.taken()
            plane.receive(data)
            plane.disconnect()
            plane.connect()
        plane.fake.calls.clear()

    for _ in range(30):
        run()
    gc.collect()
    gc.disable()
    try:
        blocks, references = sys.getallocatedblocks(), sys.getrefcount(Tensor)
        for _ in range(60):
            run()
        assert sys.getallocatedblocks() - blocks < 600, "fewer than requests"
        assert sys.getrefcount(Tensor) == references
    finally:
        gc.enable()


def test_a_front_can_be_freed() -> None:
    plane = Plane("native", HttpSettings())
    for _ in range(3):
        held = plane.receive(RECOGNISED["id"][0])
        held[0][1](plane.fake.answer(held[0][0]))
    recogniser = plane.connection._recogniser
    assert recogniser is not None
    matched = recogniser.match(RECOGNISED["id"][0], plane.connection)
    assert is_known(matched) and is_known(held[0][1])
    gc.collect()
    before = _tables()
    del plane, matched, recogniser, held
    gc.collect()
    assert _tables() == before - 1


def _tables() -> int:
    # By `type`: `isinstance` asks objects for their class, and some of PyTorch's warn of it.
    return sum(type(found) is extension.HttpRequests for found in gc.get_objects())


numbers = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.text(max_size=3), st.none(), st.just([])
)


@given(
    st.sampled_from(["FP32", "FP64", "INT8", "UINT64", "INT64", "BOOL", "BYTES"]),
    st.lists(numbers, min_size=1, max_size=3),
    st.text(max_size=4),
)
def test_any_data_is_read_as_by_python(planes: Planes, datatype: str, data: Any, identifier: str) -> None:
    usual = {"BOOL": True, "BYTES": "a"}.get(datatype, 1)
    known = with_data(datatype, [usual] * len(data), id="x")
    known, asked = alike(known, with_data(datatype, data, id=identifier))
    for _ in range(4):
        planes.ask(known)
    planes.ask(asked)


@given(st.sampled_from(sorted(RECOGNISED)), st.data())
def test_changed_requests_are_read_as_by_python(planes: Planes, name: str, data: st.DataObject) -> None:
    changed = bytearray(RECOGNISED[name][0])
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(changed)))
        size = data.draw(st.integers(0, 3))
        changed[start : start + size] = data.draw(st.binary(min_size=size, max_size=size))
    planes.ask(bytes(changed))
