"""Detects rectangles of three colours: for each, the box around its pixels.

A stand-in for a network: it knows one object of a colour. The score is the share of the box that has the
colour, so it falls when another object hides a part.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

COLOURS = np.array([[220, 30, 30], [30, 200, 30], [40, 70, 230]], np.int16)
NEAR = 60
"""Largest difference of a channel from the colour."""
FEWEST = 40
"""Pixels below which a colour is noise."""


def detect(frame):
    """Return boxes [n, 4], scores [n] and classes [n] of a frame [height, width, 3]."""
    found = []
    for label, colour in enumerate(COLOURS):
        mask = (np.abs(frame.astype(np.int16) - colour) < NEAR).all(axis=2)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        if mask.sum() < FEWEST:
            continue
        top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
        score = mask.sum() / ((bottom - top) * (right - left))
        found.append((left, top, right, bottom, score, label))
    table = np.array(found, np.float32).reshape(-1, 6)
    return table[:, :4], table[:, 4], table[:, 5].astype(np.int32)


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        outputs = detect(pb_utils.get_input_tensor_by_name(request, "FRAME").as_numpy())
        names = ("BOXES", "SCORES", "CLASSES")
        tensors = [pb_utils.Tensor(*each) for each in zip(names, outputs, strict=True)]
        return pb_utils.InferenceResponse(tensors)
