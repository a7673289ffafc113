"""Cuts lines of text out of a picture, by the probability of text at each pixel.

As in DBNet's post-processing (arXiv 1911.08947, section 3.5): pixels above a threshold that touch form a
region, which is the shrunk kernel of a line and is grown again; here lines are upright rectangles.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from nereid_client.vision import normalise, resize, text_boxes

HEIGHT = 48
SHORTEST = 32


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self._max_lines = int(parameters["max_lines"]["string_value"])
        self._max_width = int(parameters["max_width"]["string_value"])

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        picture = pb_utils.get_input_tensor_by_name(request, "picture").as_numpy()
        probability = pb_utils.get_input_tensor_by_name(request, "probability").as_numpy()[0, 0]
        boxes = lines_of(probability, picture.shape[:2])
        largest = sorted(boxes, key=lambda box: (box[2] - box[0]) * (box[3] - box[1]))[-self._max_lines :]
        boxes = reading_order(largest)
        lines = [self._line(picture, box) for box in boxes] or [np.ones((3, HEIGHT, SHORTEST), np.float32)]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("lines", side_by_side(lines)),
                pb_utils.Tensor("boxes", np.array(boxes, np.int32).reshape(-1, 4)),
            ]
        )

    def _line(self, picture, box):
        """A line as recognition expects it, FP32 [3, 48, width] from -1 to 1."""
        left, top, right, bottom = box
        width = round((right - left) * HEIGHT / (bottom - top))
        width = min(max(width, SHORTEST), self._max_width)
        return normalise(resize(picture, (HEIGHT, width), box=box), mean=127.5, scale=127.5)


def side_by_side(lines):
    """Lines of different widths as one batch, padded with 0."""
    batch = np.zeros((len(lines), 3, HEIGHT, max(line.shape[2] for line in lines)), np.float32)
    for row, line in zip(batch, lines, strict=True):
        row[:, :, : line.shape[2]] = line
    return batch


def lines_of(probability, size):
    """Left, top, right and bottom of each line, in whole pixels of a picture of `size` (height, width)."""
    scale = np.array(size[::-1]) / probability.shape[::-1]
    corners = text_boxes(probability, upright=True).corners[:, [0, 2]] * scale
    inside = np.minimum(corners.round().clip(0), size[::-1])
    return [tuple(box) for box in inside.reshape(-1, 4).astype(int).tolist()]


def reading_order(boxes):
    """From top to bottom, and from left to right where one box is as high up as the other."""
    rows = []
    for box in sorted(boxes, key=lambda box: box[1] + box[3]):
        middle = (box[1] + box[3]) / 2
        if rows and middle < rows[-1][0][3]:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [box for row in rows for box in sorted(row)]
