"""Boxes: overlap, and suppression of those that overlap a better one."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Detections(NamedTuple):
    """Objects in a picture, the best first: boxes FP32 [n, 4], scores FP32 [n], classes INT64 [n]."""

    boxes: Array
    scores: Array
    classes: Array


def to_corners(boxes: Array) -> Array:
    """Convert (centre x, centre y, width, height) [n, 4] to (left, top, right, bottom)."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def iou(first: Array, second: Array) -> Array:
    """Return the intersection over union of each of n boxes with each of m, [n, m]; 0 without any area."""
    corner = np.maximum(first[:, None, :2], second[None, :, :2])
    opposite = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = (opposite - corner).clip(0).prod(axis=2)
    union = _areas(first)[:, None] + _areas(second)[None] - common
    result: Array = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return result


def _areas(boxes: Array) -> Array:
    areas: Array = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
    return areas


def nms(
    boxes: Array,
    scores: Array,
    classes: Array | None = None,
    iou_threshold: float = 0.45,
    max_detections: int = 300,
) -> Array:
    """Return the indices of boxes that overlap no better one of their class, the best first, INT64.

    Of equal scores the first is the better one.

    Args:
        boxes: [n, 4].
        scores: [n].
        classes: [n]; None: all of one class.
        iou_threshold: a box goes whose overlap with a better one is above it.
        max_detections: at most so many are returned, and so many comparisons made.
    """
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while len(order) and len(kept) < max_detections:
        best, order = order[0], order[1:]
        kept.append(best)
        overlaps = iou(boxes[best : best + 1], boxes[order])[0] > iou_threshold
        if classes is not None:
            overlaps &= classes[order] == classes[best]
        order = order[~overlaps]
    return np.array(kept, np.int64)
