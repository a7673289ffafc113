"""Hidden states to vectors."""

import triton_python_backend_utils as pb_utils

from nereid_client.text import normalise, pool


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        hidden, mask = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("hidden", "mask")
        )
        return pb_utils.InferenceResponse([pb_utils.Tensor("vector", normalise(pool(hidden, mask)))])
