"""A Python model that a load request brings along; it answers a constant."""

import numpy as np
import tritonclient.http

OVERRIDE = """{"backend": "python", "max_batch_size": 0,
 "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}],
 "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]}]}"""
MODEL = b"""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answer = pb_utils.Tensor("OUTPUT0", np.array([%d], np.float32))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""


def constant(client: tritonclient.http.InferenceServerClient, model: str) -> float:
    tensor = tritonclient.http.InferInput("INPUT0", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, np.float32))
    answer = client.infer(model, [tensor]).as_numpy("OUTPUT0")
    assert answer is not None
    return float(answer[0])
