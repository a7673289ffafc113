"""`pb_utils.InferenceResponse`, and the sender with which a model sends responses itself."""

import json
import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from app.core.tensors import InferRequest, InferResponse, ParameterValue, failed
from app.core.tensors import Tensor as WireTensor
from backends.base import Request
from backends.python.api.errors import TritonError, TritonModelException
from backends.python.api.output_check import OutputCheck
from backends.python.api.parameters import checked_response
from backends.python.api.tensor import Tensor

logger = logging.getLogger(__name__)

COMPLETE_FINAL: Final = 1


class InferenceResponse:
    """The outputs of a request, or its error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | str | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        if None in output_tensors:
            raise TritonModelException("Output tensor for inference response should not be empty.")
        self._tensors = output_tensors
        self._error = TritonError(error) if isinstance(error, str) else error
        self._parameters = None if parameters is None else checked_response(parameters)

    def output_tensors(self) -> list[Tensor]:
        return list(self._tensors)

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, if any."""
        return self._error

    def parameters(self) -> str:
        """Return the response parameters as JSON."""
        return json.dumps(self._parameters or {})


class Encoder:
    """Converts a model's responses to `InferResponse`."""

    def __init__(
        self, model_name: str, version: str, outputs: Iterable[str], bf16: Iterable[str], config: str
    ) -> None:
        """Set the model's outputs and configuration; `bf16` names those of type BF16, which numpy has not."""
        self._check = OutputCheck(model_name, config)
        self._model_name = model_name
        self._version = version
        self._names: Collection[str] = frozenset(outputs)
        self._expected = dict.fromkeys(bf16, "BF16")

    def encode(
        self, response: InferenceResponse, infer: InferRequest, final: bool = True, viewed: bool = False
    ) -> InferResponse:
        """Return the response with the requested outputs, or the error.

        Tensors that are no outputs of the configuration are dropped, as in Triton. With `viewed` the outputs
        are the model's own arrays, which it does not change before they are sent.

        Raises:
            InferError: INVALID_ARG for an array of a dtype without a data type.
        """
        if response._error is not None:
            return failed(response._error._failure(), infer.id, final)
        tensors, requested = response._tensors, infer.outputs
        names = self._names
        if requested:
            names = (requested[0].name,) if len(requested) == 1 else {output.name for output in requested}
        fitting, expected = self._check.fitting, self._expected
        outputs: tuple[WireTensor, ...] = ()
        for tensor in tensors:
            name = tensor._name
            if name in names:
                output = tensor._to_wire(expected.get(name), viewed)
                if fitting.get(name) != (output.datatype, output.shape):
                    self._check.compare(output)
                outputs += (output,)
        if len(outputs) < len(tensors):
            self._check.warn_of_undeclared(t._name for t in tensors if t._name not in self._names)
        parameters = response._parameters or {}
        return InferResponse(self._model_name, self._version, outputs, infer.id, parameters, final)


class InferenceResponseSender:
    """Sends the responses of one request, from any thread, during `execute` or later.

    Dropping the last reference closes the sender: a decoupled request then ends, any other fails. So a model
    that loses a request does not leave its client waiting.
    """

    __slots__ = ("_closed", "_decoupled", "_encoder", "_lock", "_request", "_sent")

    def __init__(self, request: Request, encoder: Encoder, decoupled: bool) -> None:
        self._request = request
        self._encoder = encoder
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self._sent = 0
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, or with TRITONSERVER_RESPONSE_COMPLETE_FINAL alone, end the request.

        Raises:
            TritonModelException: the transaction policy forbids it; Triton's texts.
        """
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send() takes an InferenceResponse, found type '{type(response)}'")
        # The only response of a model that is not decoupled is final.
        final = bool(flags) or not self._decoupled
        encoded = self._encoded(response, final)
        with self._lock:
            self._check(response)
            self._sent += 1
            self._closed = bool(flags)
            if response is not None or self._decoupled:
                self._request.deliver(encoded)

    def is_cancelled(self) -> bool:
        """Whether the client cancelled or disconnected."""
        return self._request.is_cancelled()

    def _release(self) -> None:
        """Give up the request, which is executed again or has failed."""
        self._closed = True

    def _encoded(self, response: InferenceResponse | None, final: bool) -> InferResponse:
        infer = self._request.infer
        if response is None:
            return InferResponse(id=infer.id, final=True)
        return self._encoder.encode(response, infer, final)

    def _check(self, response: InferenceResponse | None) -> None:
        if not self._decoupled:
            if response is not None and self._sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if response is None and not self._sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before"
                    " sending a response."
                )
        if self._closed or (self._request.answered and response is not None):
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def __del__(self) -> None:
        if self._closed or self._request.answered:
            return
        try:
            self._request.deliver(self._ending())
        except Exception:
            logger.exception("ending a request whose response sender was dropped")

    def _ending(self) -> InferResponse:
        if self._decoupled:
            return InferResponse(id=self._request.infer.id, final=True)
        text = "the model dropped the response sender without sending a response"
        return failed(RuntimeError(text), self._request.infer.id)
