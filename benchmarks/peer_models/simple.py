"""`simple` for Triton's Python backend: sum and difference in numpy, cheaper than an ONNX Runtime call."""

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
        )
