"""Best path of CTC: the likeliest class at each place, repeats and blanks left out.

Class k is line k of characters.txt, from 1; class 0 is the blank.
"""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(os.path.dirname(__file__), "characters.txt"), encoding="utf-8") as lines:
            self._alphabet = np.array(["", *lines.read().split("\n")[:-1]], dtype=object)

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        scores = pb_utils.get_input_tensor_by_name(request, "scores").as_numpy()
        count = len(pb_utils.get_input_tensor_by_name(request, "boxes").as_numpy())
        best = scores[:count].argmax(axis=2)  # of a picture without text, none
        lines = [self._read(*line) for line in zip(best, scores, strict=False)]
        text = np.array([text.encode() for text, _ in lines], dtype=object)
        confidence = np.array([confidence for _, confidence in lines], np.float32)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("text", text), pb_utils.Tensor("confidence", confidence)]
        )

    def _read(self, best, scores):
        kept = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
        text = "".join(self._alphabet[best[kept]])
        return text, scores[np.flatnonzero(kept), best[kept]].mean() if text else 0.0
