"""Text of lines, by the best path of CTC.

Class k is line k of characters.txt, from 1; class 0 is the blank.
"""

import os

import numpy as np
import triton_python_backend_utils as pb_utils

from nereid_client.vision import ctc_best_path


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(os.path.dirname(__file__), "characters.txt"), encoding="utf-8") as lines:
            self._alphabet = np.array(["", *lines.read().split("\n")[:-1]], dtype=object)

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        scores = pb_utils.get_input_tensor_by_name(request, "scores").as_numpy()
        count = len(pb_utils.get_input_tensor_by_name(request, "boxes").as_numpy())
        readings = [ctc_best_path(line) for line in scores[:count]]  # of a picture without text, none
        lines = ["".join(self._alphabet[reading.classes]) for reading in readings]
        text = np.array([line.encode() for line in lines], dtype=object)
        confidence = np.array([reading.confidence for reading in readings], np.float32)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("text", text), pb_utils.Tensor("confidence", confidence)]
        )
