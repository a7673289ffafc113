import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils

EXECUTION_S = 0.05


class TritonPythonModel:
    """OUTPUT0 = INPUT0 + 1, and the number of the machine that has executed the request."""

    def execute(self, requests):
        time.sleep(EXECUTION_S)
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        machine = np.full_like(values, int(os.environ["MACHINE"]))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT0", values + 1), pb_utils.Tensor("MACHINE", machine)]
        )
