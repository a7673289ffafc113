"""Outputs of YOLO networks to detections, and to keypoints and mask coefficients, which `masks.py` needs.

`anchor_head` and `anchor_free_head` decode networks that were exported without their last step; most exports
have it, and go to `detect` as they are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nereid_client.vision.arrays import Array, as_type, library
from nereid_client.vision.boxes import Detections, to_corners
from nereid_client.vision.suppression import nms

Matrix = npt.NDArray[Any]


def detect(
    rows: Array,
    objectness: bool = False,
    score_threshold: float = 0.25,
    iou_threshold: float = 0.45,
    max_detections: int = 300,
) -> Detections:
    """Return the detections in the output of a network for one picture.

    Args:
        rows: [n, 4 + classes] of centre, size and scores, as of YOLOv8 and later (transposed: its output is
            [4 + classes, n]); or [n, 5 + classes] with objectness before the classes, as of YOLOv5 and YOLOX.
        objectness: whether it has that column; scores are multiplied by it.
        score_threshold: boxes with lower scores go first.
        iou_threshold: as for `nms`, of each class alone.
        max_detections: at most so many are returned.
    """
    return detect_with_extras(rows, 0, objectness, score_threshold, iou_threshold, max_detections)[0]


def detect_with_extras(
    rows: Array,
    extras: int,
    objectness: bool = False,
    score_threshold: float = 0.25,
    iou_threshold: float = 0.45,
    max_detections: int = 300,
) -> tuple[Detections, Array]:
    """Return detections and, FP32 [n, extras], what the last columns say about each; otherwise as `detect`.

    Args:
        rows: as for `detect`, with as many columns more: coefficients of masks (32 of YOLOv8-seg), for
            `instance_masks`; or keypoints (51 of YOLOv8-pose), for `keypoints`.
        extras: their number.
    """
    first, last = 4 + objectness, rows.shape[1] - extras
    scores = rows[:, first:last] * rows[:, 4:5] if objectness else rows[:, first:last]
    best = library(rows).amax(scores, axis=1)
    likely = best >= score_threshold
    rows, best, classes = rows[likely], best[likely], scores[likely].argmax(axis=1)
    boxes = to_corners(rows[:, :4])
    kept = nms(boxes, best, classes, iou_threshold, max_detections)
    found = Detections(
        as_type(boxes[kept], "float32"), as_type(best[kept], "float32"), as_type(classes[kept], "int64")
    )
    return found, as_type(rows[kept, last:], "float32")


class Keypoints(NamedTuple):
    """Points of objects in pixels of the network's input, FP32 [n, points, 2], scores FP32 [n, points]."""

    points: Array
    scores: Array


def keypoints(extras: Array, scored: bool = True) -> Keypoints:
    """Return the keypoints in the last columns of a YOLO-pose network's rows.

    Args:
        extras: [n, points * 3] of x, y and score, from `detect_with_extras`.
        scored: whether there are scores; without, [n, points * 2], each is 1.
    """
    width = 2 + scored
    values = extras.reshape(len(extras), extras.shape[1] // width, width)
    scores = values[..., 2] if scored else values[..., 0] * 0 + 1
    return Keypoints(values[..., :2], scores)


def anchor_head(outputs: Sequence[Matrix], anchors: Sequence[Sequence[tuple[float, float]]]) -> Matrix:
    """Decode the maps of a network with anchors (YOLOv5, v7) for one picture of the network's size.

    Centre (2 s - 0.5 + cell) * stride, size (2 s)^2 * anchor, with s the sigmoid of the output; the stride is
    8 for the first map, and for each other one twice that of the map before.

    Args:
        outputs: for each stride [anchors, height, width, 5 + classes], before the sigmoid.
        anchors: for each stride the width and height of its anchors, in pixels.

    Returns:
        FP32 [n, 5 + classes], for `detect(..., objectness=True)`.
    """
    decoded = []
    for level, (output, sizes) in enumerate(zip(outputs, anchors, strict=True)):
        values = _sigmoid(output.astype(np.float32))
        cells = _cells(output.shape[1], output.shape[2])
        values[..., :2] = (values[..., :2] * 2 - 0.5 + cells) * (8 << level)
        values[..., 2:4] = (values[..., 2:4] * 2) ** 2 * np.array(sizes, np.float32)[:, None, None]
        decoded.append(values.reshape(-1, values.shape[-1]))
    return np.concatenate(decoded)


def anchor_free_head(output: Matrix, size: tuple[int, int], strides: Sequence[int] = (8, 16, 32)) -> Matrix:
    """Decode the rows of a network without anchors (YOLOX) for one picture: scores are probabilities already.

    Centre (t + cell) * stride, size e^t * stride.

    Args:
        output: [n, 5 + classes], the cells of each stride in rows, the strides one after the other.
        size: height and width of the network's input, multiples of the strides.
        strides: pixels of a cell.

    Returns:
        FP32 [n, 5 + classes], for `detect(..., objectness=True)`.

    Raises:
        ValueError: n is not the number of cells.
    """
    grids = [_cells(size[0] // stride, size[1] // stride).reshape(-1, 2) for stride in strides]
    cells = np.concatenate(grids)
    if len(cells) != len(output):
        raise ValueError(f"a picture of {size} has {len(cells)} cells, but the output {len(output)} rows")
    pixels = np.repeat(np.array(strides, np.float32), [len(grid) for grid in grids])[:, None]
    decoded = output.astype(np.float32)
    decoded[:, :2] = (decoded[:, :2] + cells) * pixels
    decoded[:, 2:4] = np.exp(decoded[:, 2:4]) * pixels
    return decoded


def _cells(height: int, width: int) -> Matrix:
    """Return x and y of each cell, FP32 [height, width, 2]."""
    y, x = np.indices((height, width), np.float32)
    return np.stack([x, y], axis=-1)


def _sigmoid(values: Matrix) -> Matrix:
    # By tanh, which does not overflow.
    result: Matrix = (np.tanh(values / 2) + 1) / 2
    return result
