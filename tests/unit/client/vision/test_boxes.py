"""Overlap of boxes, and suppression against a slow reference."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nereid_client.vision import iou, nms, to_corners

Array = npt.NDArray[Any]


def overlap(a: Array, b: Array) -> float:
    """Intersection over union of two boxes, by its definition."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return float(common / union) if union else 0.0


def suppressed(boxes: Array, scores: Array, classes: Array, threshold: float) -> list[int]:
    """Keep each box, the best first, that overlaps none of those kept before it of its class."""
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda index: (-scores[index], index)):
        rivals = [other for other in kept if classes[other] == classes[index]]
        if all(overlap(boxes[index], boxes[other]) <= threshold for other in rivals):
            kept.append(index)
    return kept


def some_boxes(seed: int, count: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(seed)
    corners = random.integers(0, 30, (count, 2)).astype(np.float64)
    boxes = np.concatenate([corners, corners + random.integers(0, 20, (count, 2))], axis=1)
    return boxes, random.integers(0, 8, count) / 8, random.integers(0, 3, count)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
def test_nms_keeps_what_a_slow_reference_keeps(seed: int, threshold: float) -> None:
    boxes, scores, classes = some_boxes(seed, 40)
    assert nms(boxes, scores, classes, threshold).tolist() == suppressed(boxes, scores, classes, threshold)
    one_class = np.zeros(40)
    assert nms(boxes, scores, None, threshold).tolist() == suppressed(boxes, scores, one_class, threshold)


def test_nms_stops_at_the_largest_number() -> None:
    boxes, scores, classes = some_boxes(3, 40)
    assert nms(boxes, scores, classes, 0.5, 4).tolist() == suppressed(boxes, scores, classes, 0.5)[:4]


def test_nms_of_nothing() -> None:
    kept = nms(np.empty((0, 4)), np.empty(0), np.empty(0))
    assert kept.tolist() == []
    assert kept.dtype == np.int64


def test_iou_is_its_definition() -> None:
    boxes, _, _ = some_boxes(1, 25)
    others = boxes[:7] + 1
    expected = [[overlap(a, b) for b in others] for a in boxes]
    assert np.allclose(iou(boxes, others), expected)
    assert iou(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 1, 3, 3]])).tolist() == [[1 / 7]]
    assert iou(np.array([[5.0, 5, 5, 5]]), np.array([[5.0, 5, 5, 5]])).tolist() == [[0]]


def test_centres_become_corners() -> None:
    assert to_corners(np.array([[10.0, 20, 4, 6]])).tolist() == [[8, 17, 12, 23]]
