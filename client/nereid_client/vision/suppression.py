"""Suppression of boxes that overlap a better one."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nereid_client.vision.arrays import Array, backend_of, library
from nereid_client.vision.boxes import iou

_BLOCK: Final = 1024
"""Boxes compared with all others at once: bounds the memory of their overlaps in FP32."""


def nms(
    boxes: Array,
    scores: Array,
    classes: Array | None = None,
    iou_threshold: float = 0.45,
    max_detections: int = 300,
    backend: str | None = None,
) -> Array:
    """Return the indices of boxes that overlap no better one of their class, the best first, INT64.

    Of equal scores the first is the better one. Tensors stay on their device and need n^2 bytes there.

    Args:
        boxes: [n, 4].
        scores: [n].
        classes: [n]; None: all of one class.
        iou_threshold: a box goes whose overlap with a better one is above it.
        max_detections: at most so many are returned, and with numpy so many comparisons made.
        backend: "opencv" for arrays; rounds overlaps otherwise, and suppresses equal boxes without area.
    """
    match backend_of(boxes, backend):
        case "torch":
            return _all_at_once(boxes, scores, classes, iou_threshold)[:max_detections]
        case "opencv":
            from nereid_client.vision import on_opencv

            return on_opencv.nms(boxes, scores, classes, iou_threshold)[:max_detections]
    return _one_by_one(boxes, scores, classes, iou_threshold, max_detections)


def _one_by_one(
    boxes: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    classes: npt.NDArray[Any] | None,
    iou_threshold: float,
    max_detections: int,
) -> npt.NDArray[np.int64]:
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


def _all_at_once(boxes: Array, scores: Array, classes: Array | None, iou_threshold: float) -> Array:
    """Suppress boxes with few calls of PyTorch.

    A box stays if no better one that stays overlaps it. Asked of all boxes at once, again and again, first as
    if all stayed, at least one more of the best is right after each round, and all are once an answer
    repeats: after a few rounds, where one box after the other would take as many as there are boxes.
    """
    torch = library(boxes)
    order = torch.argsort(scores, descending=True, stable=True)
    better = _suppressing(boxes[order], None if classes is None else classes[order], iou_threshold)
    stays = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    while True:
        then = ~(better & stays[:, None]).any(dim=0)
        if torch.equal(then, stays):
            return order[stays]
        stays = then


def _suppressing(boxes: Array, classes: Array | None, iou_threshold: float) -> Array:
    """Return BOOL [n, n] of boxes, the best first: whether that of the row suppresses that of the column."""
    torch = library(boxes)
    result = torch.zeros((len(boxes), len(boxes)), dtype=torch.bool, device=boxes.device)
    for start in range(0, len(boxes), _BLOCK):
        rows = slice(start, start + _BLOCK)
        result[rows] = iou(boxes[rows], boxes) > iou_threshold
        if classes is not None:
            result[rows] &= classes[rows, None] == classes
    return result.triu_(diagonal=1)
