"""The language of a text, by a logistic regression over its groups of two and three letters.

weights.npz has `names`, and `weights`, FP32 [GROUPS, languages]: `language` in build.py trains them.
"""

import os
import re
import zlib

import numpy as np
import triton_python_backend_utils as pb_utils

GROUPS = 4096
MAX_LETTERS = 10_000


def features(text):
    """Return how often groups of letters are in a text, by their hash: roots of the shares, FP32 [GROUPS]."""
    letters = " " + re.sub(r"[\W\d_]+", " ", text[:MAX_LETTERS].lower()).strip() + " "
    groups = (letters[i : i + size] for size in (2, 3) for i in range(len(letters) - size + 1))
    hashes = [zlib.crc32(group.encode()) % GROUPS for group in groups]
    counts = np.bincount(hashes, minlength=GROUPS).astype(np.float32)
    return np.sqrt(counts / counts.sum())


def softmax(scores):
    """Return probabilities for scores, [rows, languages]."""
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


class TritonPythonModel:
    def initialize(self, args):
        with np.load(os.path.join(os.path.dirname(__file__), "weights.npz")) as file:
            self._names, self._weights = file["names"], file["weights"]

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        rows = np.stack([features(text.decode(errors="replace")) for text in texts.ravel()])
        found = softmax(rows @ self._weights)
        names = self._names[found.argmax(axis=1)].astype(object).reshape(texts.shape)
        best = found.max(axis=1).astype(np.float64).round(2).reshape(texts.shape)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("language", names), pb_utils.Tensor("probability", best)]
        )
