"""As much of triton_python_backend_utils as the example models use."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class Tensor:
    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        self.name, self._array = name, array

    def as_numpy(self) -> npt.NDArray[Any]:
        return self._array


class TritonError:
    INVALID_ARG = 3

    def __init__(self, message: str, code: int) -> None:
        self.message, self.code = message, code


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self.outputs = {tensor.name: tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class Request:
    """A request that is its own response sender; `sent` are the responses of a decoupled model."""

    def __init__(self, **arrays: npt.NDArray[Any]) -> None:
        self.inputs = {name: Tensor(name, array) for name, array in arrays.items()}
        self.sent: list[InferenceResponse] = []
        self.final = False

    def get_response_sender(self) -> "Request":
        return self

    def is_cancelled(self) -> bool:
        return False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self.final
        if response is not None:
            self.sent.append(response)
        self.final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL


def get_input_tensor_by_name(request: Request, name: str) -> Tensor:
    return request.inputs[name]
