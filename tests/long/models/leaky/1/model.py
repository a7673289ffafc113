import numpy as np
import triton_python_backend_utils as pb_utils

LEAK = 64 << 10


class TritonPythonModel:
    def initialize(self, args):
        self._kept = []

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        self._kept.append(np.ones(LEAK, np.uint8))
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)])
