"""Calls of C++ backends to other models, and their questions about models: `shim/calls.cpp`.

A call is an event of the compiled library, sent as a call of a Python model is. Its responses and answers are
given to the library on threads of this module: callbacks of a backend may block, or call models themselves.
"""

import ctypes
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Final

import msgspec

from app.core.buffers import allocate
from app.core.inference import Cancel, cancel_nothing
from app.core.tensors import (
    InferRequest,
    InferResponse,
    Parameters,
    RequestedOutput,
    SequenceId,
    Tensor,
    failed,
)
from backends.base import Request
from backends.cpp.library import number_of, shim
from backends.cpp.questions import answer
from backends.cpp.requests import END, START, address_of, tensor_values
from backends.python.api import server_api
from backends.python.api.calls import MAX_QUEUED, inherited, too_many_queued

logger = logging.getLogger(__name__)

_THREADS: Final = 64
"""Callbacks of backends that may block at the same time."""
_ANSWERING: Final = 16
"""Questions that are answered at the same time: by other threads, because callbacks may wait for answers."""
_encode: Final = msgspec.msgpack.Encoder().encode


class _Call:
    """A call in flight: gives its responses to the library, one after the other."""

    def __init__(self, number: int, calls: "ModelCalls") -> None:
        self._number = number
        self._calls = calls
        self._lock = Lock()
        self._queued: deque[InferResponse] = deque()
        self._delivering = self._closed = False
        self.cancel: Cancel = cancel_nothing

    def receive(self, response: InferResponse) -> None:
        """Queue a response; called on any thread."""
        with self._lock:
            if self._closed:
                return
            if len(self._queued) >= MAX_QUEUED and not response.final:
                self.cancel()
                response = too_many_queued()
            self._closed = response.final
            self._queued.append(response)
            if self._delivering:
                return
            self._delivering = True
        self._calls.pool.submit(self._deliver)

    def _deliver(self) -> None:
        while True:
            with self._lock:
                if not self._queued:
                    self._delivering = False
                    return
                response = self._queued.popleft()
            if response.final:
                self._calls.ended(self._number)
            try:
                message = _response(response)
            except Exception as error:
                logger.exception("reading the response of a call")
                message = _response(failed(error, final=response.final))
            shim().nereid_respond(self._number, message, len(message))


class ModelCalls:
    """The calls in flight of the backends of this process."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(_THREADS, "C++ backends' calls")
        self._answering = ThreadPoolExecutor(_ANSWERING, "C++ backends' questions")
        self._calls: dict[int, _Call] = {}

    def start(self, number: int, callers: Sequence[Request], *fields: Any) -> None:
        """Send a call that any of these requests may have made; its fields are those of a CALL."""
        call = self._calls[number] = _Call(number, self)
        try:
            call.cancel = server_api.current().send(_request(callers, *fields), call.receive, True, callers)
        except Exception as error:
            logger.exception("calling a model")
            call.receive(failed(error))

    def cancel(self, number: int) -> None:
        """Tell the model of a call that it is cancelled, if it has not ended."""
        if (call := self._calls.get(number)) is not None:
            call.cancel(advice=True)

    def ended(self, number: int) -> None:
        """Forget a call."""
        self._calls.pop(number, None)

    def answer(self, number: int, *question: Any) -> None:
        """Answer a question, on a thread that may wait for the server."""
        self._answering.submit(answer, number, *question)


def _request(
    callers: Sequence[Request],
    model: str,
    version: str,
    request_id: str,
    sequence_id: SequenceId,
    flags: int,
    priority: int,
    timeout_us: int,
    parameters: Parameters,
    inputs: Sequence[Sequence[Any]],
    outputs: Sequence[str],
) -> InferRequest:
    """Return the request of a call, with what it inherits from its callers, as one of a Python model."""
    least, deadline, trace, chain = inherited(callers)
    return InferRequest(
        model,
        version,
        tuple([_tensor(*tensor) for tensor in inputs]),
        tuple([RequestedOutput(name) for name in outputs]),
        request_id,
        parameters,
        sequence_id,
        bool(flags & START),
        bool(flags & END),
        priority=priority or least,
        timeout_us=timeout_us,
        deadline=deadline,
        trace=trace,
        chain=(*chain, server_api.current().caller),
    )


def _tensor(name: str, datatype: str, shape: Sequence[int], data: Any) -> Tensor:
    """Return an input; a large one is copied, because the backend may free it when the call has ended."""
    if type(data) is list:
        joined, offset = allocate(sum(size for _, size in data)), 0
        for address, size in data:
            ctypes.memmove(address_of(joined) + offset, address, size)
            offset += size
        data = joined
    return Tensor(name, datatype, tuple(shape), data)


def _response(response: InferResponse) -> bytes:
    """Return the message of `nereid_respond`. Large outputs are addresses: the response must outlive it."""
    failure, version = response.failure, response.model_version
    return _encode(
        (
            response.final,
            response.is_end_of_stream,
            -1 if failure is None else number_of(failure),
            "" if failure is None else failure.message,
            response.model_name,
            int(version) if version else -1,
            response.parameters,
            [tensor_values(tensor, tensor.shape) for tensor in response.outputs],
        )
    )
