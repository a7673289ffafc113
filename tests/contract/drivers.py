"""The four clients of `tritonclient` behind one synchronous interface: one case runs over all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException

TIMEOUT_S = 30.0


class Refusal(NamedTuple):
    """An error as a client sees it: HTTP status or gRPC status name, and the text."""

    status: str
    text: str


class Refused(Exception):
    """Raised by every driver method that the server answers with an error."""

    def __init__(self, error: InferenceServerException) -> None:
        status = (error.status() or "").removeprefix("StatusCode.")
        super().__init__(status, error.message())
        self.refusal = Refusal(status, error.message())


@dataclass(frozen=True)
class Input:
    """A tensor to send. `shape` is what the request claims, by default that of the array."""

    name: str
    array: np.ndarray
    datatype: str
    shape: Sequence[int] | None = None
    binary: bool = True


@dataclass(frozen=True)
class Output:
    """A requested output; `binary` concerns HTTP alone."""

    name: str
    classes: int = 0
    binary: bool = True


@dataclass(frozen=True)
class Shared:
    """A tensor in shared memory: an input, or, without data type and shape, a place for an output."""

    name: str
    region: str
    nbytes: int
    offset: int = 0
    datatype: str = ""
    shape: Sequence[int] = ()


class Response:
    """An inference response over either protocol."""

    def __init__(self, result: Any) -> None:
        self._result = result
        message = result.get_response()
        self._fields = message if isinstance(message, dict) else _grpc_fields(message)
        self.id: str = self._fields.get("id", "")
        self.model_name: str = self._fields["model_name"]
        self.model_version: str = self._fields["model_version"]
        self.parameters: dict[str, Any] = self._fields.get("parameters", {})
        self.names = [output["name"] for output in self._fields.get("outputs", [])]

    def array(self, name: str) -> np.ndarray:
        array: np.ndarray = self._result.as_numpy(name)
        return array

    def output(self, name: str) -> dict[str, Any]:
        """Name, datatype, shape and, over HTTP, parameters or data."""
        return next(output for output in self._fields["outputs"] if output["name"] == name)

    def raw(self, name: str) -> bytes:
        """The wire bytes of an output that came in binary."""
        message = self._result.get_response()
        if not isinstance(message, dict):
            return bytes(message.raw_output_contents[self.names.index(name)])
        size = self.output(name)["parameters"]["binary_data_size"]
        if not size:
            return b""
        start = self._result._output_name_to_buffer_map[name]
        return bytes(self._result._buffer[start : start + size])


def _grpc_fields(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "model_name": message.model_name,
        "model_version": message.model_version,
        "parameters": {
            key: getattr(value, value.WhichOneof("parameter_choice"))
            for key, value in message.parameters.items()
        },
        "outputs": [
            {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
            for output in message.outputs
        ],
    }


@dataclass(frozen=True)
class StreamRequest:
    """One request of a stream."""

    model: str
    inputs: Sequence[Input]
    outputs: Sequence[Output] = ()
    options: dict[str, Any] = field(default_factory=dict)


class Driver:
    """One client of tritonclient. Methods raise `Refused` where the server answers with an error."""

    protocol: str

    def __init__(self, module: Any, url: str, finish: Callable[[Any], Any]) -> None:
        """
        Args:
            module: the tritonclient module.
            url: `host:port` of the server.
            finish: makes the value of what a client method returns, which is a coroutine for the aio clients.
        """
        self._module = module
        self._finish = finish
        self._client = finish(_make_client(module, url))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client by name."""
        with _refusals():
            return self._finish(getattr(self._client, method)(*args, **kwargs))

    def infer(
        self, model: str, inputs: Sequence[Input], outputs: Sequence[Output] = (), **options: Any
    ) -> Response:
        return Response(
            self.call("infer", model, self._inputs(inputs), outputs=self._outputs(outputs), **options)
        )

    def infer_shared(
        self, model: str, inputs: Sequence[Shared], outputs: Sequence[Shared | Output] = ()
    ) -> Response:
        """Infer with inputs in shared memory, and outputs there or in the response."""
        built = [self._module.InferInput(tensor.name, tensor.shape, tensor.datatype) for tensor in inputs]
        for tensor, target in zip(inputs, built, strict=True):
            target.set_shared_memory(tensor.region, tensor.nbytes, tensor.offset)
        wanted = [
            self._output(Output(output.name)) if isinstance(output, Shared) else self._output(output)
            for output in outputs
        ]
        for output, target in zip(outputs, wanted, strict=True):
            if isinstance(output, Shared):
                target.set_shared_memory(output.region, output.nbytes, output.offset)
        return Response(self.call("infer", model, built, outputs=wanted or None))

    def describe(self, method: str, *args: str) -> dict[str, Any]:
        """Call a `get_...` method; the answer is its JSON form with int64 as the protocol writes it."""
        answer = self.call(method, *args)
        return answer if isinstance(answer, dict) else MessageToDict(answer, preserving_proto_field_name=True)

    def close(self) -> None:
        self._finish(self._client.close())

    def _inputs(self, inputs: Sequence[Input]) -> list[Any]:
        return [self._input(tensor) for tensor in inputs]

    def _input(self, tensor: Input) -> Any:
        built = self._module.InferInput(tensor.name, tensor.array.shape, tensor.datatype)
        self._fill(built, tensor)
        if tensor.shape is not None:
            built.set_shape(tensor.shape)
        return built

    def _outputs(self, outputs: Sequence[Output]) -> list[Any] | None:
        return [self._output(output) for output in outputs] or None

    def _fill(self, built: Any, tensor: Input) -> None:
        raise NotImplementedError

    def _output(self, output: Output) -> Any:
        raise NotImplementedError


class HttpDriver(Driver):
    protocol = "http"

    def _fill(self, built: Any, tensor: Input) -> None:
        built.set_data_from_numpy(tensor.array, binary_data=tensor.binary)

    def _output(self, output: Output) -> Any:
        return self._module.InferRequestedOutput(
            output.name, binary_data=output.binary, class_count=output.classes
        )


class GrpcDriver(Driver):
    protocol = "grpc"

    def responses(self, requests: Sequence[StreamRequest]) -> list[Response]:
        """Send a stream of which no request is refused."""
        outcomes = self.stream(requests)
        responses = [outcome for outcome in outcomes if isinstance(outcome, Response)]
        assert responses == outcomes
        return responses

    def stream(
        self, requests: Sequence[StreamRequest], headers: dict[str, str] | None = None
    ) -> list[Response | Refusal]:
        """Send all requests on one stream, close the sending side, and return what came until the end."""
        arrived: SimpleQueue[Any] = SimpleQueue()
        self._client.start_stream(
            lambda result, error: arrived.put((result, error)), headers=headers, stream_timeout=TIMEOUT_S
        )
        for request in requests:
            self._client.async_stream_infer(
                request.model,
                self._inputs(request.inputs),
                outputs=self._outputs(request.outputs),
                **request.options,
            )
        self._client.stop_stream()
        return [_outcome(*arrived.get()) for _ in range(arrived.qsize())]

    def _fill(self, built: Any, tensor: Input) -> None:
        built.set_data_from_numpy(tensor.array)

    def _output(self, output: Output) -> Any:
        return self._module.InferRequestedOutput(output.name, class_count=output.classes)


class GrpcAioDriver(GrpcDriver):
    def stream(
        self, requests: Sequence[StreamRequest], headers: dict[str, str] | None = None
    ) -> list[Response | Refusal]:
        outcomes: list[Response | Refusal] = self._finish(self._collect(requests, headers))
        return outcomes

    async def _collect(
        self, requests: Sequence[StreamRequest], headers: dict[str, str] | None
    ) -> list[Response | Refusal]:
        outcomes: list[Response | Refusal] = []
        responses = self._client.stream_infer(
            self._messages(requests), stream_timeout=TIMEOUT_S, headers=headers
        )
        try:
            async for result, error in responses:
                outcomes.append(_outcome(result, error))
        except tritonclient.grpc.grpc.RpcError as error:
            outcomes.append(Refusal(error.code().name, error.details()))
        return outcomes

    async def _messages(self, requests: Sequence[StreamRequest]) -> AsyncIterator[dict[str, Any]]:
        for request in requests:
            yield {
                "model_name": request.model,
                "inputs": self._inputs(request.inputs),
                "outputs": self._outputs(request.outputs),
                **request.options,
            }


def _outcome(result: Any, error: InferenceServerException | None) -> Response | Refusal:
    return Refused(error).refusal if error is not None else Response(result)


async def _make_client(module: Any, url: str) -> Any:
    # A coroutine for all four: the aio clients must be made on their loop.
    return module.InferenceServerClient(url)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except InferenceServerException as error:
        raise Refused(error) from error


DRIVERS: dict[str, tuple[type[Driver], Any]] = {
    "http": (HttpDriver, tritonclient.http),
    "grpc": (GrpcDriver, tritonclient.grpc),
    "http-aio": (HttpDriver, tritonclient.http.aio),
    "grpc-aio": (GrpcAioDriver, tritonclient.grpc.aio),
}


@contextmanager
def open_driver(name: str, http_url: str, grpc_url: str) -> Iterator[Driver]:
    """Open one of `DRIVERS`, with an event loop of its own for what needs one."""
    kind, module = DRIVERS[name]
    loop = asyncio.new_event_loop()

    def finish(value: Any) -> Any:
        return loop.run_until_complete(value) if asyncio.iscoroutine(value) else value

    driver = kind(module, http_url if kind.protocol == "http" else grpc_url, finish)
    try:
        yield driver
    finally:
        driver.close()
        loop.close()
