"""Requests and responses of the in-process API."""

import asyncio
import queue
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from app.core.errors import ErrorCode, Failure
from app.core.inference import Cancel, cancel_nothing
from app.core.tensors import InferRequest, InferResponse, failed
from app.core.tensors import Tensor as WireTensor
from nereid.engine.engine import Engine
from nereid.engine.sent import MAX_WAITING
from nereid.inprocess.errors import InvalidArgumentError, TritonError, error_of, triton_errors
from nereid.inprocess.kinds import RequestFlag
from nereid.inprocess.tensors import Device, Tensor

_START: Final = int(RequestFlag.SEQUENCE_START)
_END: Final = int(RequestFlag.SEQUENCE_END)
_PARAMETERS: Final = (str, int, float, bool)


class Addressed(Protocol):
    """A model, or one version of it, as requests name it."""

    name: str
    version: int

    @property
    def version_text(self) -> str: ...

    def answering(self, version: int) -> "Addressed":
        """Return the version that has answered a request."""


@dataclass
class InferenceRequest:
    """A request of a model; made by `Model.create_request`.

    Attributes:
        model: the model.
        request_id: of logs and traces.
        flags: see `RequestFlag`.
        correlation_id: the sequence that the request is part of.
        priority: as in Triton's schedule policy.
        timeout: microseconds in the queue after which the request fails.
        inputs: by name: tensors, arrays, lists, or objects with `__dlpack__`. Memory is not copied.
        parameters: custom parameters.
        output_memory_type: where outputs are to be, see `Tensor.to_device`.
        response_queue: gets every response too: a `queue.SimpleQueue`, or `asyncio.Queue` for `async_infer`.
    """

    model: Addressed
    request_id: str | None = None
    flags: int = 0
    correlation_id: int | str | None = None
    priority: int = 0
    timeout: int = 0
    inputs: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    output_memory_type: Device | None = None
    response_queue: "queue.SimpleQueue[InferenceResponse] | asyncio.Queue[InferenceResponse] | None" = None

    def to_infer(self) -> InferRequest:
        """Return the request in the form of the server.

        Raises:
            InvalidArgumentError: a parameter of another type.
        """
        for name, value in self.parameters.items():
            if type(value) not in _PARAMETERS:
                raise InvalidArgumentError(
                    f"parameter '{name}' is {type(value)}, not str, int, float or bool"
                )
        flags = int(self.flags)  # operators of an enumeration make members, which takes a microsecond each
        return InferRequest(
            self.model.name,
            self.model.version_text,
            tuple([_wire(name, value) for name, value in self.inputs.items()]),
            id=self.request_id or "",
            parameters=dict(self.parameters),
            sequence_id=self.correlation_id or 0,
            sequence_start=flags & _START != 0,
            sequence_end=flags & _END != 0,
            priority=self.priority,
            timeout_us=self.timeout,
        )


def _wire(name: str, value: Any) -> WireTensor:
    if isinstance(value, np.ndarray):
        return WireTensor.from_array(name, value)
    return Tensor.from_object(value).wire(name)


@dataclass
class InferenceResponse:
    """A response.

    Attributes:
        model: the model that has answered.
        request_id: that of the request.
        parameters: given by the model.
        outputs: tensors by name; empty for the last response of a decoupled model that has ended.
        error: why the request failed; None for a success.
        classification_label: None; for programs that read it.
        final: whether it is the request's last.
    """

    model: Addressed
    request_id: str | None = None
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: TritonError | None = None
    classification_label: str | None = None
    final: bool = False

    @classmethod
    def received(cls, request: InferenceRequest, response: InferResponse) -> "InferenceResponse":
        """Return the form of this API."""
        model = request.model
        if response.model_version:
            model = model.answering(int(response.model_version))
        outputs = {tensor.name: Tensor.from_wire(tensor) for tensor in response.outputs}
        if request.output_memory_type is not None:
            wanted = request.output_memory_type
            outputs = {name: tensor.to_device(wanted) for name, tensor in outputs.items()}
        error = None if response.failure is None else error_of(response.failure)
        given = response.id or request.request_id
        return cls(model, given, dict(response.parameters), outputs, error, None, response.final)


class _Responses:
    """The responses of a request that was sent."""

    _waits: ClassVar[bool]
    """Its reader's thread waits for them."""

    def __init__(self, engine: Engine, request: InferenceRequest, raise_on_error: bool) -> None:
        self._engine = engine
        self._request = request
        self._raises = raise_on_error
        self._ended = False
        self._cancel: Cancel = cancel_nothing
        with triton_errors():
            self._cancel = engine.send(request.to_infer(), self.receive, self._waits)

    def receive(self, response: InferResponse) -> None:
        """Take a response, on the engine's thread."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Tell the model that its responses are not needed; what it responds still comes."""
        self._cancel(advice=True)

    def _bounded(self, waiting: int, response: InferResponse) -> InferResponse | None:
        """Return what is to be queued; None for nothing, as the reader is too slow."""
        if waiting < MAX_WAITING or response.final:
            return response
        self._cancel()
        text = f"more than {MAX_WAITING} responses wait to be read"
        return failed(Failure(ErrorCode.UNAVAILABLE, text)) if waiting == MAX_WAITING else None

    def _taken(self, response: InferResponse) -> InferenceResponse:
        self._ended = response.final
        found = InferenceResponse.received(self._request, response)
        if found.error is not None and self._raises:
            found.error.args = (*found.error.args, found)
            raise found.error
        return found


class ResponseIterator(_Responses):
    """An iterator over the responses of a request, which blocks."""

    _waits = True

    def __init__(self, engine: Engine, request: InferenceRequest, raise_on_error: bool) -> None:
        if isinstance(request.response_queue, asyncio.Queue):
            raise InvalidArgumentError("queue.SimpleQueue must be used for response iterator")
        self._copies = request.response_queue
        self._waiting: queue.SimpleQueue[InferResponse] = queue.SimpleQueue()
        super().__init__(engine, request, raise_on_error)

    def receive(self, response: InferResponse) -> None:
        kept = self._bounded(self._waiting.qsize(), response)
        if kept is not None:
            self._waiting.put(kept)
            if self._copies is not None:
                self._copies.put(InferenceResponse.received(self._request, kept))

    def __iter__(self) -> "ResponseIterator":
        return self

    def __next__(self) -> InferenceResponse:
        if self._ended:
            raise StopIteration
        return self._taken(self._engine.next(self._waiting))


class AsyncResponseIterator(_Responses):
    """An asynchronous iterator over the responses of a request, of the loop that has made it."""

    _waits = False

    def __init__(self, engine: Engine, request: InferenceRequest, raise_on_error: bool) -> None:
        if isinstance(request.response_queue, queue.SimpleQueue):
            raise InvalidArgumentError("asyncio.Queue must be used for async response iterator")
        self._copies = request.response_queue
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[InferResponse] = asyncio.Queue()
        super().__init__(engine, request, raise_on_error)

    def receive(self, response: InferResponse) -> None:
        try:
            self._loop.call_soon_threadsafe(self._put, response)
        except RuntimeError:  # the reader's loop is closed
            self._cancel()

    def _put(self, response: InferResponse) -> None:
        kept = self._bounded(self._waiting.qsize(), response)
        if kept is not None:
            self._waiting.put_nowait(kept)
            if self._copies is not None:
                self._copies.put_nowait(InferenceResponse.received(self._request, kept))

    def __aiter__(self) -> "AsyncResponseIterator":
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._ended:
            raise StopAsyncIteration
        return self._taken(await self._waiting.get())
