"""Targets of what else reads requests: what is learned of v2, and the protocols of other servers."""

import asyncio
import itertools
import json
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.core.config.request_check import RequestChecker
from app.core.errors import InferError
from app.core.observability.live_settings import LiveSettings
from app.core.tensors import InferRequest, InferResponse, RegionSlice, Tensor
from app.ingress.clouds.sagemaker import SageMakerFront
from app.ingress.grpc.tfserving import _message
from app.ingress.http1.connection import HttpConnection
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.tracing.observer import Observer
from app.native.choice import missing
from app.protocol import torchserve
from app.protocol.grpc.request_message import decode_request
from app.protocol.tfserving import examples, grpc, multi_inference, rest
from app.protocol.tfserving.signature import signature_of
from app.settings.clouds import CloudSettings
from app.settings.fronts import HttpSettings
from tests.fuzz.target import LIMIT, Target, cut
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress import http_peer
from tests.unit.app.ingress.compatible.test_torchserve import CONFIG as MIGRATED
from tests.unit.app.ingress.http2.planes import Side
from tests.unit.app.ingress.two_planes import Planes, Transport, plain

_number = itertools.count()


def http_learned(data: bytes) -> None:
    """Two bytes with a length, as much JSON that is sent until it is learned, then JSON for the next ones."""
    if missing():
        return
    length, rest = cut(data)
    first, second = rest[:length], rest[length:]
    size, agent = max(len(first), len(second)), f"User-Agent: {next(_number):040}"
    for text in (first, first, first, second, second, first):
        _planes().ask(http_peer.request(http_peer.INFER, text.ljust(size), agent), _echoed)
    for plane in _planes().both:
        plane.fake.calls.clear()


@cache
def _planes() -> Planes:
    return Planes()


def _echoed(request: InferRequest) -> list[InferResponse]:
    tensors = [
        Tensor(f"OUT{tensor.name}", tensor.datatype, tensor.shape, bytes(tensor.data))
        for tensor in request.inputs
        if not isinstance(tensor.data, RegionSlice)
    ]
    return [InferResponse(request.model_name, "1", tuple(tensors))]


def grpc_learned(data: bytes) -> None:
    """Two bytes with a length, a message of as many bytes, and a tensor that is sent in it after its own."""
    length, rest = cut(data)
    message, tensor = rest[:length], rest[length:]
    later = message + b"\x3a" + _varint(len(tensor)) + tensor
    decode = Side("auto").decode
    for sent in (message, message, later, later):
        expected = _told(decode_request, sent)
        assert _told(decode, sent, 0.0) == expected


def _told(read: Callable[..., InferRequest], *arguments: Any) -> str:
    try:
        return repr(plain(read(*arguments)))
    except InferError as error:
        return error.with_code()


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def _config(text: str) -> mc.ModelConfig:
    return text_format.Parse(text, mc.ModelConfig())


_PREDICT = _config(
    'name: "m" input { name: "I" data_type: TYPE_FP32 dims: [ -1, -1 ] optional: true } '
    'input { name: "B" data_type: TYPE_INT8 dims: [ -1 ] optional: true } '
    'input { name: "S" data_type: TYPE_STRING dims: [ -1 ] optional: true } '
    'output { name: "OUTI" data_type: TYPE_FP32 dims: [ -1, -1 ] }'
)
_EXAMPLES = _config(
    'name: "m" input { name: "inputs" data_type: TYPE_STRING dims: [ -1 ] } '
    'output { name: "outputs" data_type: TYPE_FP32 dims: [ -1 ] }'
    'output { name: "scores" data_type: TYPE_FP32 dims: [ -1, 2 ] }'
)
_predict, _examples = signature_of(_PREDICT), signature_of(_EXAMPLES)
_check_predict, _check_examples = RequestChecker(_PREDICT).check, RequestChecker(_EXAMPLES).check


def tfserving_rest(data: bytes) -> None:
    """A byte that chooses between `:predict` and the others, then a body."""
    if data[:1] in (b"", b"p"):
        predict = rest.decode_predict("m", "1", data[1:], _predict, LIMIT)
        _check_predict(predict.request)
        rest.encode_predictions(_echoed(predict.request)[0], _predict, predict.rows)
        return
    found = examples.decode_examples(data[1:], _examples, LIMIT)
    _check_examples(examples.examples_request("m", 1, found, _examples, ["outputs"]))


def tfserving_grpc(data: bytes) -> None:
    """A byte that chooses the method, then a message."""
    method = data[:1]
    if method in (b"", b"p"):
        request = grpc.decode_predict(_message(grpc.PredictRequest, data[1:]), 1, _predict, 0.0)
        _check_predict(request)
        grpc.encode_predict(_echoed(request)[0], 1, _predict)
    elif method == b"m":
        message = _message(multi_inference.MultiInferenceRequest, data[1:])
        multi_inference.model_spec(message)
        tasks = multi_inference.decode_tasks(message, _examples)
        _answer_examples(
            examples.input_examples(message.input), multi_inference.wanted_outputs(tasks, _examples)
        )
    else:
        message = _message(examples.ClassificationRequest, data[1:])
        _answer_examples(examples.examples_of(message, _examples), ["scores"])


def _answer_examples(found: list[bytes], wanted: list[str]) -> None:
    _check_examples(examples.examples_request("m", 1, found, _examples, wanted))


_migrated = _config(MIGRATED)
_check_migrated = RequestChecker(_migrated).check


def torchserve_body(data: bytes) -> None:
    """A content type, a line end, then a body."""
    content_type, _, body = data.partition(b"\n")
    request = torchserve.decode_prediction("m", "1", body, content_type.decode("latin-1"), _migrated)
    _check_migrated(request)


class _SageMaker:
    """A front and an event loop, without sockets."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        observer = Observer(LiveSettings())
        parts = HttpSettings(), CloudSettings(), _no_metrics, observer, SendBufferLimit()
        self._front = SageMakerFront(FakeService(), *parts)
        self._state = self._front._server.state
        self._state.loop, self._state.now = self._loop, self._loop.time

    def ask(self, data: bytes) -> bytes:
        """Return what a client gets."""
        return self._loop.run_until_complete(self._ask(data))

    async def _ask(self, data: bytes) -> bytes:
        connection, transport = HttpConnection(self._state), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(data)
        await asyncio.gather(*self._front._context.tasks)
        connection.connection_lost(None)
        return transport.written


async def _no_metrics(*_: object) -> bytes:
    return b""


@cache
def _sagemaker() -> _SageMaker:
    return _SageMaker()


_ASKED = (
    ("POST", "/models"),
    ("GET", "/models"),
    ("DELETE", "/models/a"),
    ("GET", "/models/a"),
    ("GET", "/ping"),
)


def sagemaker_models(data: bytes) -> None:
    """A byte that chooses the request, a content type, a line end, then a body."""
    method, path = _ASKED[sum(data[:1]) % len(_ASKED)]
    content_type, _, body = data[1:].partition(b"\n")
    header = f"Content-Type: {content_type.decode('latin-1')}"
    head, _, _ = http_peer.request(path, body, method=method).partition(b"\r\n\r\n")
    status = _sagemaker().ask(head + b"\r\n" + header.encode("latin-1") + b"\r\n\r\n" + body)[:13]
    assert status.startswith(b"HTTP/1.1 ") and not status.startswith(b"HTTP/1.1 500"), status


def _json_infer(shape: list[int], datatype: str, data: Any) -> bytes:
    return json.dumps(
        {"id": "a", "inputs": [{"name": "INPUT0", "shape": shape, "datatype": datatype, "data": data}]}
    ).encode()


def _after(first: bytes, second: bytes) -> bytes:
    return len(first).to_bytes(2, "little") + first + second


def _v2_message(shape: list[int], raw: bytes) -> bytes:
    message = pb.ModelInferRequest(model_name="m", id="7", raw_input_contents=[raw])
    message.inputs.add(name="I", datatype="BYTES", shape=shape)
    message.outputs.add(name="O").parameters["classification"].int64_param = 2
    return bytes(message.SerializeToString())


def _tensor_message(shape: list[int], dtype: int, **values: Any) -> bytes:
    message = grpc.PredictRequest()
    message.model_spec.name = "m"
    tensor = message.inputs["S" if dtype == 7 else "I"]
    tensor.dtype = dtype
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    for name, value in values.items():
        if isinstance(value, bytes):
            setattr(tensor, name, value)
        else:
            getattr(tensor, name).extend(value)
    return bytes(message.SerializeToString())


def _examples_message(kind: Any) -> bytes:
    message = kind()
    message.input.example_list_with_context.context = b"\x0a\x00"
    message.input.example_list_with_context.examples.extend([b"\x0a\x00", b""])
    if kind is examples.ClassificationRequest:
        message.model_spec.name = "m"
    else:
        for name, method in (("", "classify"), ("x", "regress")):
            task = message.tasks.add(method_name=f"tensorflow/serving/{method}")
            task.model_spec.name, task.model_spec.signature_name = "m", name
    return bytes(message.SerializeToString())


_FORM = (
    b"multipart/form-data; boundary=xyz\n"
    b'--xyz\r\nContent-Disposition: form-data; name="data"; filename="a"\r\n'
    b"Content-Type: image/png\r\n\r\n1\r\n"
    b'--xyz\r\nContent-Disposition: form-data; name="text"\r\n\r\n2\r\n--xyz--\r\n'
)
_OK = (InferError,)

HOSTILE: dict[str, Target] = {
    "http_learned": Target(
        http_learned,
        (),
        (
            _after(_json_infer([1, 1], "BYTES", ["x"]), _json_infer([1, 1], "BYTES", ["y"])),
            _after(_json_infer([1, 1 << 16], "BYTES", ["x"]), _json_infer([1, 1 << 62], "BYTES", [])),
            _after(_json_infer([2, 2], "FP32", [[1, 2], [3, 4]]), _json_infer([2, 2], "FP32", [5, 6, 7, 8])),
            _after(_json_infer([0, 1 << 62], "INT64", []), _json_infer([], "BOOL", [True])),
        ),
    ),
    "grpc_learned": Target(
        grpc_learned,
        (),
        (
            _after(_v2_message([1, 1], b"\1\0\0\0x"), b"\1\0\0\0y"),
            _after(_v2_message([1, 1 << 62], b"\xff\xff\xff\xff"), b""),
        ),
        times=4,
    ),
    "tfserving_rest": Target(
        tfserving_rest,
        _OK,
        (
            b'p{"instances": [{"I": [1, 2.5], "B": 1, "S": {"b64": "YQ=="}}]}',
            b'p{"inputs": {"I": [[1, 2], [3, 4]], "S": ["a"]}}',
            b'e{"context": {"c": "d"}, "examples": [{"x": [1, 2], "y": {"b64": "YQ=="}}, {"z": 1.5}]}',
        ),
    ),
    "tfserving_grpc": Target(
        tfserving_grpc,
        _OK,
        (
            b"p" + _tensor_message([2, 2], 1, tensor_content=struct.pack("<4f", 1, 2, 3, 4)),
            b"p" + _tensor_message([2, 100], 1, float_val=[1.5, 2]),
            b"p" + _tensor_message([4], 7, string_val=[b"a", b"b"]),
            b"e" + _examples_message(examples.ClassificationRequest),
            b"m" + _examples_message(multi_inference.MultiInferenceRequest),
        ),
    ),
    "torchserve_body": Target(
        torchserve_body,
        _OK,
        (_FORM, b"application/x-www-form-urlencoded\na=1&b=%41+c", b"image/png\n\xff"),
    ),
    "sagemaker_models": Target(
        sagemaker_models,
        (),
        (
            b"\0application/json\n"
            + json.dumps({"model_name": "a", "url": "/opt/ml/models/1/model"}).encode(),
            b"\4application/vnd.sagemaker-triton.binary+json;json-header-size=abc\n",
            b"\2text/plain\n",
        ),
    ),
}
