"""Text models of tests: each answers a request by the pieces that the test gives it."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.client import HTTPConnection
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.routing.table import VersionEntry
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.running_fronts import WAIT_S
from tests.unit.app.routing_fakes import FakeCall

TEXT = """
name: "identity" backend: "python" model_transaction_policy { decoupled: true }
input [{ name: "prompt" data_type: TYPE_STRING dims: [ 1 ] },
       { name: "messages" data_type: TYPE_STRING dims: [ 1 ] optional: true }]
output [{ name: "answer" data_type: TYPE_STRING dims: [ 1 ] }]
"""
_OPTIONS = ("finish_reason", "num_input_tokens", "num_output_tokens", "logprobs")
VLLM = """
name: "identity" backend: "vllm" model_transaction_policy { decoupled: true }
input [{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
       { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
       { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
       { name: "messages" data_type: TYPE_STRING dims: [ 1 ] optional: true },
       { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }]
""" + "".join(
    f'input [{{ name: "return_{name}" data_type: TYPE_BOOL dims: [ 1 ] optional: true }}]\n'
    for name in _OPTIONS
)
Piece = str | Exception | Mapping[str, Any]
Script = Callable[[InferRequest], Iterable[Piece]]


class TextService(FakeService):
    """A model that answers each request by the pieces of a script.

    A piece is a text, outputs by name, or a failure. `ends` are further outputs of the last piece.
    """

    def __init__(self, script: Script, config: str = TEXT, empty_end: bool = False) -> None:
        super().__init__()
        self.config = text_format.Parse(config, mc.ModelConfig())
        self.script = script
        self.empty_end = empty_end
        self.seen: list[InferRequest] = []
        self.output = self.config.output[0].name

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> FakeCall:
        call = FakeCall()
        self.calls.append(call)
        self.seen.append(request)
        if self.hold:
            self.held.append((request, sink))
            return call
        loop = asyncio.get_running_loop()
        for response in self.responses(request):
            loop.call_soon(sink, response)
        return call

    def responses(self, request: InferRequest) -> list[InferResponse]:
        pieces = list(self.script(request))
        found = [self.response(piece, at == len(pieces) - 1) for at, piece in enumerate(pieces)]
        if self.empty_end:
            found[-1] = InferResponse("identity", "1", found[-1].outputs, final=False)
            found.append(InferResponse("identity", "1"))
        return found

    def response(self, piece: Piece, final: bool) -> InferResponse:
        if isinstance(piece, Exception):
            return failed(piece)
        outputs = piece if isinstance(piece, Mapping) else {self.output: piece}
        return InferResponse("identity", "1", tuple(tensor(*each) for each in outputs.items()), final=final)


def tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, str | bytes):
        return Tensor.from_array(name, np.array([value], np.object_))
    return Tensor.from_array(name, np.array([value], np.uint32))


def inputs(request: InferRequest) -> dict[str, Any]:
    """Return the values of a request's inputs."""
    found = {}
    for each in request.inputs:
        value = each.array().ravel()[0]
        found[each.name] = value.decode() if isinstance(value, bytes) else value.item()
    return found


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the last one is "[DONE]"."""
        *blocks, rest = self.body.split(b"\n\n")
        assert rest == b""
        assert all(block.startswith(b"data: ") for block in blocks)
        assert blocks[-1] == b"data: [DONE]", self.body
        return [json.loads(block[6:]) for block in blocks[:-1]] + ["[DONE]"]

    @property
    def texts(self) -> dict[int, str]:
        """The texts of a stream by choice."""
        found: dict[int, str] = {}
        for each in self.events[:-1]:
            for choice in each.get("choices", ()):
                text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                found[choice["index"]] = found.get(choice["index"], "") + text
        return found


def post(port: int, path: str, document: Any, **headers: str) -> Reply:
    """Send a request on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, found, response.read())
    finally:
        connection.close()


def of(*pieces: Piece) -> Script:
    """Return a script of the same pieces for every request."""
    given: Sequence[Piece] = pieces
    return lambda request: given
