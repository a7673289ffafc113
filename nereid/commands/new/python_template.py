"""Doubles its input: the place to begin. The files of the model are beside this one.

Written by `nereid new`. docs/use/testing.md tells how to test it, docs/use/dev.md how to try it.
"""

import json
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model; the server makes one for each instance."""

    def initialize(self, args: Any) -> None:
        """Load what executions need. An exception here is the reason why the model is not served."""
        self.config = json.loads(args["model_config"])

    def execute(self, requests: Any) -> Any:
        """Return a response for each request, in their order."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        """Answer one request, whose first dimension is that of its rows."""
        array = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", 2 * array)])

    def finalize(self) -> None:
        """Give back what initialize took; the model is unloaded."""
