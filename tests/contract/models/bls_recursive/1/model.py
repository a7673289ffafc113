"""Calls itself so many times as the input says, each time from another of its instances."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request.inputs()[0].as_numpy()) for request in requests]

    def _respond(self, depth):
        if not depth[0]:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.zeros(1, np.int32))])
        tensor = pb_utils.Tensor("INPUT", depth - 1)
        response = pb_utils.InferenceRequest(
            model_name="bls_recursive", requested_output_names=["OUTPUT"], inputs=[tensor]
        ).exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        below = pb_utils.get_output_tensor_by_name(response, "OUTPUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", below + 1)])
