"""Any one-input, one-output ONNX model for Triton's Python backend: one ONNX Runtime call a batch."""

import json
import os
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        threads = config.get("parameters", {}).get("intra_op_thread_count", {}).get("string_value", "0")
        options.intra_op_num_threads = int(threads)
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input = config["input"][0]["name"]
        self.output = config["output"][0]["name"]

    def execute(self, requests: list[Any]) -> list[Any]:
        arrays = [pb_utils.get_input_tensor_by_name(request, self.input).as_numpy() for request in requests]
        (rows,) = self.session.run([self.output], {self.input: np.concatenate(arrays)})
        ends = np.cumsum([len(array) for array in arrays])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(self.output, part)]) for part in np.split(rows, ends)
        ]
