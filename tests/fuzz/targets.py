"""What reads bytes that a client or a file chose, one function each, and examples to start from.

A target takes any bytes and returns, or raises one of the errors it names. Anything else is a fault, as are
time or memory out of proportion to the input (`tests/fuzz/test_targets.py` has the bounds).
"""

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import msgspec
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.access.grants import Grants
from app.access.tokens import encode, make_token, parse
from app.core.config.model_config import input_specs
from app.core.config.request_check import RequestChecker
from app.core.config.text import parse_config_json, parse_pbtxt
from app.core.errors import InferError
from app.core.tensors import Buffer, InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor
from app.native.choice import missing
from app.protocol.grpc import framing, http2, request_message
from app.protocol.http import content_coding, generate, http1
from app.protocol.http import v2 as http_v2
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire import compiled, control_messages, frames, messages
from backends.registry.configuration import normalise, validate
from tests.channel_ends import called, served
from tests.fuzz.hostile import HOSTILE
from tests.fuzz.http2_planes import HTTP2
from tests.fuzz.json_planes import JSON
from tests.fuzz.migrations import MIGRATIONS
from tests.fuzz.openai_bodies import OPENAI
from tests.fuzz.target import LIMIT, Target, cut
from tests.unit.app.ingress import http_peer
from tests.unit.app.ingress.http2 import planes
from tests.unit.app.ingress.two_planes import Planes

MODELS = Path(__file__).parents[2] / "model_repository"

CONFIG = text_format.Parse(
    """
    name: "m" max_batch_size: 8
    input { name: "I" data_type: TYPE_INT32 dims: [ -1 ] }
    input { name: "S" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    output { name: "O" data_type: TYPE_INT32 dims: [ -1 ] }
    """,
    mc.ModelConfig(),
)
RAW_CONFIG = text_format.Parse(
    'name: "r" input { name: "I" data_type: TYPE_FP16 dims: [ 2, -1 ] }', mc.ModelConfig()
)
_checker, _raw_checker = RequestChecker(CONFIG), RequestChecker(RAW_CONFIG)
_specs = input_specs(CONFIG)


def http_infer(data: bytes) -> None:
    """Two bytes with the length of the JSON header (0: all of it), then a body."""
    length, body = cut(data)
    infer = http_v2.decode_infer("m", "", body, length or None, LIMIT)
    _checker.check(infer.request)


def http_known(data: bytes) -> None:
    """What a connection reads at once: where requests are recognised, the same happens as elsewhere."""
    if not missing():
        _planes().ask(data)


@cache
def _planes() -> Planes:
    planes = Planes()
    for seed in TARGETS["http_known"].seeds:
        planes.learn(seed)
    return planes


def http_raw(data: bytes) -> None:
    _raw_checker.check(http_v2.decode_raw("r", "", data, RAW_CONFIG, LIMIT).request)


def http_generate(data: bytes) -> None:
    _checker.check(generate.decode_generate("m", "", data, _specs, LIMIT))


def http_head(data: bytes) -> None:
    http1.parse_head(data + b"\r\n\r\n").as_sent()


def http_chunks(data: bytes) -> None:
    body = http1.ChunkedBody(LIMIT)
    for start in range(0, len(data), 7):
        if body.feed(data[start : start + 7]) is not None:
            return


def http_compressed(data: bytes) -> None:
    assert len(content_coding.decompress(data, LIMIT)) <= LIMIT


def grpc_infer(data: bytes) -> None:
    """The compiled way of reading says what the plain one says."""
    plain = _outcome(lambda: request_message.decode_request(data))
    assert _outcome(partial(_decode_compiled, data, 0.0)) == plain
    _checker.check(request_message.decode_request(data))


def _outcome(read: Callable[[], InferRequest]) -> object:
    try:
        request = read()
    except InferError as error:
        return error.code, error.message
    tensors = [
        (t.name, t.datatype, t.shape, t.data if isinstance(t.data, RegionSlice) else bytes(t.data))
        for t in request.inputs
    ]
    return tensors, repr(msgspec.structs.replace(request, inputs=()))  # as text: NaN is not itself


def grpc_messages(data: bytes) -> None:
    reader = framing.MessageReader("gzip", LIMIT)
    for start in range(0, len(data), 11):
        for message in reader.feed(data[start : start + 11]):
            plain = message.decompress(LIMIT) if isinstance(message, framing.Compressed) else message
            assert len(plain) <= LIMIT


def http2_frames(data: bytes) -> None:
    reader = http2.FrameReader(1 << 14)
    for start in range(0, len(data), 13):
        for frame in reader.feed(data[start : start + 13]):
            assert isinstance(frame.payload, bytes), "only long DATA comes in parts"
            if frame.kind in (http2.HEADERS, http2.DATA):
                http2.unpad(frame.flags, frame.payload)
            elif frame.kind == http2.SETTINGS:
                http2.read_settings(frame.payload)
            else:
                http2.read_long(frame.payload)


def channel(data: bytes) -> None:
    """What one of our processes would have to believe of another."""
    decoder = frames.FrameDecoder(LIMIT, LIMIT, 1 << 12)
    view = memoryview(data)
    while view:
        room = decoder.get_buffer()
        size = min(len(room), len(view))
        room[:size], view = view[:size], view[size:]
        for frame in decoder.received(size):
            if frame.kind in _READERS:
                _READERS[frame.kind](frame)


def _read_request(frame: frames.Frame) -> InferRequest:
    return messages.decode_request(frame, 0.0, None)


def compiled_messages(data: bytes) -> None:
    """The meta of a request or a response: what the extension reads, Python reads alike."""
    if _compiled is None:
        return
    frame = frames.Frame(0, frames.FINAL, 1, 0, memoryview(data), memoryview(b""), False)
    request, response = _compiled.read_request(data, 0.0), _compiled.read_response(data, True)
    assert request is None or request == messages.decode_request(frame, 0.0, None)
    assert response is None or response == messages.decode_response(frame, None)


def channel_ends(data: bytes) -> None:
    """The compiled ends of a channel and Python's do the same with any frames."""
    if _compiled is None:
        return
    for end in (served, called):
        assert end("native", data) == end("python", data)


_READERS: dict[int, Callable[[frames.Frame], object]] = {
    frames.Kind.INFER: _read_request,
    frames.Kind.RESPONSE: lambda frame: messages.decode_response(frame, None),
    frames.Kind.RELEASE: control_messages.decode_release,
    frames.Kind.CONTROL: control_messages.decode_control,
    frames.Kind.CONTROL_REPLY: control_messages.decode_value,
    frames.Kind.OFFER: control_messages.decode_offer,
}


def config_pbtxt(data: bytes) -> None:
    validate(normalise(parse_pbtxt(data.decode("utf-8", "replace"), "config.pbtxt")))


def config_json(data: bytes) -> None:
    validate(normalise(parse_config_json(data.decode("utf-8", "replace"))))


def _with_header(document: object, *tensors: bytes) -> bytes:
    header = json.dumps(document).encode()
    return len(header).to_bytes(2, "little") + header + b"".join(tensors)


def _json_infer(**fields: object) -> dict[str, object]:
    return {"inputs": [{"name": "I", "shape": [1, 2], "datatype": "INT32", **fields}]}


def _sent(tensor: bytes = b"", **fields: object) -> bytes:
    """Return an HTTP request of a model that answers it."""
    given = fields if fields.keys() - {"id"} else {"parameters": {"binary_data_size": len(tensor)}}
    entry = {"name": "INPUT0", "shape": [1, 2], "datatype": "INT32", **given}
    text = json.dumps({"id": entry.pop("id", ""), "inputs": [entry]}).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return http_peer.request(http_peer.INFER, text + tensor, length, "User-Agent: " + "a" * 40)


def _grpc_infer(typed: bool) -> bytes:
    message = pb.ModelInferRequest(model_name="m", id="7")
    tensor = message.inputs.add(name="I", datatype="INT32", shape=[1, 2])
    message.parameters["sequence_id"].int64_param = 3
    message.outputs.add(name="O").parameters["classification"].int64_param = 2
    if typed:
        tensor.contents.int_contents.extend([1, 2])
    else:
        message.raw_input_contents.append(struct.pack("<ii", 1, 2))
    return bytes(message.SerializeToString())


def _channel_bytes() -> bytes:
    return frames.encode_frame(frames.Kind.CONTROL, 1, control_messages.encode_control("stats", None)) + (
        frames.encode_frame(frames.Kind.RELEASE, 0, control_messages.encode_release([64, 128]))
    )


def _message_frames() -> tuple[bytes, ...]:
    tensor, place = Tensor("I", "INT32", (1, 300), b"abcd"), RegionSlice("r", 8, 4, "key", 9)
    request = InferRequest("m", "", (tensor,), (RequestedOutput("O"),), "id")
    placed, output = Tensor("I", "INT32", (1,), place), RequestedOutput("O", region=place)
    shared = InferRequest("m", "", (placed,), (output,), "id", regions=True)
    queue: list[Buffer] = []
    encoder = messages.FrameEncoder(TransportSettings(data_plane="python"), None)
    encoder.request(queue, 1, request, 0)
    encoder.request(queue, 1, shared, 0)
    encoder.response(queue, 1, InferResponse("m", "1", (tensor,), "id"))
    return tuple(map(bytes, queue))


def _message_metas() -> tuple[bytes, ...]:
    return tuple(frame[frames.HEADER_SIZE :] for frame in _message_frames())


_compiled = compiled.compiled_messages(TransportSettings())
_decode_compiled = planes.Side("auto").decode
_TOKEN = make_token("secret", name="a", scope=("infer",), models=("a*b*c*d", "[!x]?"), rate="5/m")
_grants = Grants([_TOKEN])


def authorization(data: bytes) -> None:
    found = _grants.find(data.decode("latin-1"))
    assert found is None or data.strip().endswith(b"secret")


def token_file(data: bytes) -> None:
    grants = Grants(parse(data.decode()))
    for grant in map(grants.find, ("secret", "Bearer other")):
        if grant is not None:
            grant.permits("a" * 1000)


_OK = (InferError,)
_FRAMES = (
    http2.settings_frame({4: 65535, 3: 100}),
    http2.frame(http2.DATA, http2.PADDED, 1, b"\x02abc\0\0") + http2.window_update(1, 5),
    http2.frame(http2.HEADERS, 0, 1, b"abc") + http2.frame(http2.CONTINUATION, http2.END_HEADERS, 1, b"d"),
)

TARGETS: dict[str, Target] = {
    **HOSTILE,
    **HTTP2,
    **JSON,
    **MIGRATIONS,
    **OPENAI,
    "http_infer": Target(
        http_infer,
        _OK,
        (
            _with_header(_json_infer(data=[1, 2])),
            _with_header(_json_infer(parameters={"binary_data_size": 8}), bytes(8)),
            _with_header(
                {**_json_infer(data=[[1], [2]]), "outputs": [{"name": "O"}], "parameters": {"a": 1}}
            ),
            _with_header(_json_infer(datatype="BYTES", data=["é", "\ud800"])),
        ),
    ),
    "http_known": Target(http_known, (), (_sent(data=[1, 2], id="a"), _sent(data=[[3, 4]]), _sent(bytes(8)))),
    "http_raw": Target(http_raw, _OK, (bytes(8), b"")),
    "http_generate": Target(
        http_generate, _OK, (b'{"I": [1, 2], "S": "x", "parameters": {"t": 1.5}, "id": "a"}',)
    ),
    "http_head": Target(
        http_head,
        (http1.HttpError,),
        (
            b"POST /v2/models/m?a=%20b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue",
            b"GET http://host/v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\nConnection: upgrade",
        ),
    ),
    "http_chunks": Target(
        http_chunks, (http1.HttpError,), (b"5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\nnext", b"fffff\r\n")
    ),
    "http_compressed": Target(
        http_compressed, _OK, (gzip.compress(bytes(2 * LIMIT)), zlib.compress(b"abc"), gzip.compress(b"") * 3)
    ),
    "grpc_infer": Target(grpc_infer, _OK, (_grpc_infer(True), _grpc_infer(False))),
    "grpc_messages": Target(
        grpc_messages,
        (ValueError, LookupError, MemoryError),
        tuple(
            struct.pack(">BI", flag, len(text)) + text
            for flag, text in ((0, b"abc"), (1, gzip.compress(bytes(2 * LIMIT))), (1, gzip.compress(b"abc")))
        ),
    ),
    "http2_frames": Target(http2_frames, (http2.Http2Error,), _FRAMES),
    "authorization": Target(authorization, (), (b"Bearer secret", b"secret", b"Basic dTpw")),
    "token_file": Target(token_file, (ValueError,), (b"# who\n\n" + encode(_TOKEN).encode() + b"\n",)),
    "channel": Target(channel, (ProtocolError,), (_channel_bytes(),)),
    "compiled_messages": Target(compiled_messages, (), _message_metas()),
    "channel_ends": Target(channel_ends, (), _message_frames()),
    "config_pbtxt": Target(
        config_pbtxt, _OK, tuple(path.read_bytes() for path in sorted(MODELS.glob("*/config.pbtxt")))
    ),
    "config_json": Target(
        config_json,
        _OK,
        (
            b'{"name": "m", "backend": "python", "maxBatchSize": "4", '
            b'"input": [{"name": "I", "dataType": "type_fp32", "dims": [-1]}]}',
        ),
    ),
}
