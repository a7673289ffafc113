"""`reshape` of a configuration, by which a Python model sees other shapes than its clients.

Triton's core does so for every backend (InferenceRequest::Normalize, InferenceResponse::AddOutput).
"""

from typing import Any

from msgspec.structs import replace

from app.core.tensors import InferResponse, Tensor
from backends.base import Request
from backends.signature import Signature


class Reshaped(Request):
    """A request in the model's shapes; everything else is delegated to the original request."""

    __slots__ = ("_request", "_signature")

    def __init__(self, request: Request, signature: Signature) -> None:
        inputs = request.infer.inputs
        shapes = [signature.model_shape(tensor.name, tensor.shape) for tensor in inputs]
        changed = tuple(replace(each, shape=shape) for each, shape in zip(inputs, shapes, strict=True))
        self.infer = replace(request.infer, inputs=changed)
        self._request = request
        self._signature = signature

    def is_cancelled(self) -> bool:
        return self._request.is_cancelled()

    def report_activity(self, name: str, time_ns: int = 0) -> None:
        self._request.report_activity(name, time_ns)

    def deliver(self, response: InferResponse) -> None:
        outputs = tuple(self._to_client(tensor) for tensor in response.outputs)
        self._request.deliver(replace(response, outputs=outputs))

    def _to_client(self, tensor: Tensor) -> Tensor:
        for output in self._signature.outputs:
            if output.name == tensor.name and output.reshaped and len(tensor.shape) == len(output.expected):
                return replace(tensor, shape=output.spec.client_shape(tensor.shape))
        return tensor


def _shared(name: str) -> property:
    """Return a property that delegates to the original request."""

    def get(self: Reshaped) -> Any:
        return getattr(self._request, name)

    def put(self: Reshaped, value: Any) -> None:
        setattr(self._request, name, value)

    return property(get, put)


for _name in ("answered", "detached", "rescheduled", "activity"):
    setattr(Reshaped, _name, _shared(_name))
