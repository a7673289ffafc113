"""Calls of a model through a Serve `DeploymentHandle`: dicts of numpy arrays in and out.

For Serve applications of users; requests of clients and of other models come over channels.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import input_specs
from app.core.errors import unavailable
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, Parameters, RequestedOutput, Tensor, failed
from app.transport.loops.thread import LoopThread

Arrays = dict[str, npt.NDArray[Any]]
Send = Callable[[InferRequest, Sink], Callable[[], None]]
"""Sends a request, on the data-plane loop; returns the function that cancels it there."""

MAX_WAITING: Final = 1024
"""Responses of a decoupled model buffered for a caller that reads slowly."""


class HandleCalls:
    """Answers calls made on Serve's loop by submitting them on the data-plane loop."""

    def __init__(
        self, config: mc.ModelConfig, send: Send, plane: LoopThread, name: str = "", version: str = ""
    ) -> None:
        """`name` and `version` address the requests, by default to the model of `config`."""
        self._send = send
        self._plane = plane
        self._target = name or config.name, version
        self._datatypes = {spec.name: spec.datatype for spec in input_specs(config)}
        self._decoupled = bool(config.model_transaction_policy.decoupled)

    async def call(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        outputs: Sequence[str] = (),
        parameters: Parameters | None = None,
        request_id: str = "",
    ) -> Arrays | AsyncGenerator[Arrays, None]:
        """Make one request.

        Args:
            inputs: arrays by input name, batch dimension included; strings or bytes for BYTES, uint16
                bit patterns or `ml_dtypes.bfloat16` for BF16.
            outputs: names of the requested outputs; all of them by default.
            parameters: custom parameters.
            request_id: the request's id in logs and traces.

        Returns:
            The outputs by name, BYTES as object arrays of bytes; for a decoupled model a generator of them,
            which needs `handle.options(stream=True)`.

        Raises:
            InferError: with the code and text that a client would receive.
        """
        tensors = tuple(self._tensor(name, values) for name, values in inputs.items())
        wanted = tuple(RequestedOutput(name) for name in outputs)
        request = InferRequest(*self._target, tensors, wanted, request_id, parameters or {})
        if self._decoupled:
            return self._stream(request)
        async with aclosing(self._stream(request)) as responses:
            return await anext(responses, {})

    def _tensor(self, name: str, values: npt.ArrayLike) -> Tensor:
        array = np.asarray(values)
        bit_patterns = self._datatypes.get(name) == "BF16" and array.dtype == np.uint16
        return Tensor.from_array(name, array, "BF16" if bit_patterns else "")

    async def _stream(self, request: InferRequest) -> AsyncGenerator[Arrays, None]:
        responses = _Responses(asyncio.get_running_loop())
        response = None
        try:
            await self._plane.run(responses.start(self._send, request))
            while response is None or not response.final:
                response = await responses.next()
                if response.outputs or response.failure is not None:
                    yield arrays(response)
        finally:
            if response is None or not response.final:
                self._plane.loop.call_soon_threadsafe(responses.cancel)


class _Responses:
    """A request and the buffer of its responses between two event loops, which has a limit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: asyncio.Queue[InferResponse] = asyncio.Queue()
        self._cancel: Callable[[], None] | None = None

    async def start(self, send: Send, request: InferRequest) -> None:
        """Submit the request; runs on the data-plane loop."""
        self._cancel = send(request, self.receive)

    def cancel(self) -> None:
        """Cancel the request if it was submitted; called on the data-plane loop."""
        if self._cancel is not None:
            self._cancel()

    async def next(self) -> InferResponse:
        """Wait for the next response."""
        return await self._waiting.get()

    def receive(self, response: InferResponse) -> None:
        """Add a response; called on the data-plane loop."""
        if response.final:
            self._cancel = None  # the call refers to this object through its sink: a cycle
        try:
            self._loop.call_soon_threadsafe(self._append, response)
        except RuntimeError:  # the caller's loop is closed
            pass

    def _append(self, response: InferResponse) -> None:
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put_nowait(response)
        elif self._waiting.qsize() == MAX_WAITING:
            error = unavailable(f"more than {MAX_WAITING} responses wait to be read")
            # Not final: the reader has yet to cancel the request.
            self._waiting.put_nowait(failed(error, final=False))


def arrays(response: InferResponse) -> Arrays:
    """Return the outputs of a response by name.

    Raises:
        InferError: the request failed.
    """
    response.raise_error()
    return {tensor.name: tensor.array() for tensor in response.outputs}
