"""Outputs of YOLO networks, with values that were computed by hand."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nereid_client.vision import anchor_free_head, anchor_head, detect

Array = npt.NDArray[Any]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_detections_of_each_class_are_suppressed_alone() -> None:
    rows = np.array(
        [
            [50, 50, 20, 20, 0.9, 0.1],
            [51, 50, 20, 20, 0.8, 0.1],  # overlaps the first
            [51, 50, 20, 20, 0.1, 0.7],  # of the other class
            [90, 90, 20, 20, 0.2, 0.1],  # unlikely
            [10, 10, 4, 8, 0.3, 0.95],
        ]
    )
    found = detect(rows)
    assert found.boxes.tolist() == [[8, 6, 12, 14], [40, 40, 60, 60], [41, 40, 61, 60]]
    assert np.allclose(found.scores, [0.95, 0.9, 0.7])
    assert found.classes.tolist() == [1, 0, 1]
    assert [array.dtype for array in found] == [np.float32, np.float32, np.int64]
    assert detect(rows, max_detections=1).classes.tolist() == [1]
    assert len(detect(rows, score_threshold=0.99).boxes) == 0
    assert detect(rows, score_threshold=0.2, iou_threshold=1).classes.tolist() == [1, 0, 0, 1, 0]


def test_objectness_multiplies_the_scores() -> None:
    rows = np.array([[50, 50, 20, 20, 0.5, 0.2, 0.9], [10, 10, 4, 8, 0.2, 0.9, 0.1]])
    found = detect(rows, objectness=True, score_threshold=0.3)
    assert (found.classes.tolist(), found.scores.tolist()) == ([1], [pytest.approx(0.45)])


def test_nothing_is_detected_in_nothing() -> None:
    found = detect(np.empty((0, 84)))
    assert [array.shape for array in found] == [(0, 4), (0,), (0,)]


def test_anchor_head() -> None:
    first = np.zeros((2, 3, 4, 6))  # anchors, height, width, 5 + classes
    first[1, 2, 3] = [0.5, -1, 0.25, 2, 3, -4]
    second = np.full((2, 1, 2, 6), -800.0)  # a sigmoid by exp would overflow
    anchors = [[(10, 13), (16, 30)], [(30, 61), (62, 45)]]
    rows = anchor_head([first, second], anchors)
    assert rows.shape == (2 * 3 * 4 + 2 * 2, 6)
    assert rows.dtype == np.float32
    expected = [
        (2 * sigmoid(0.5) - 0.5 + 3) * 8,
        (2 * sigmoid(-1) - 0.5 + 2) * 8,
        (2 * sigmoid(0.25)) ** 2 * 16,
        (2 * sigmoid(2)) ** 2 * 30,
        sigmoid(3),
        sigmoid(-4),
    ]
    assert np.allclose(rows[1 * 12 + 2 * 4 + 3], expected, rtol=1e-5)
    assert np.allclose(rows[0], [4, 4, 10, 13, 0.5, 0.5])
    assert np.allclose(rows[24 + 1], [(-0.5 + 1) * 16, -0.5 * 16, 0, 0, 0, 0])


def test_anchor_free_head() -> None:
    output = np.zeros((8 * 4 + 4 * 2 + 2 * 1, 6))
    output[8 + 5] = [0.5, -0.25, 0.1, -0.2, 0.7, 0.6]  # stride 8: row 1, column 5
    output[32 + 4 + 3] = [1, 1, 0, 1, 0.5, 0.5]  # stride 16: row 1, column 3
    rows = anchor_free_head(output, (32, 64))
    assert np.allclose(rows[13], [5.5 * 8, 0.75 * 8, math.exp(0.1) * 8, math.exp(-0.2) * 8, 0.7, 0.6])
    assert np.allclose(rows[39], [4 * 16, 2 * 16, 16, math.e * 16, 0.5, 0.5])
    assert np.allclose(rows[41], [32, 0, 32, 32, 0, 0])
    assert output[13, 0] == 0.5
    with pytest.raises(ValueError, match="42 cells, but the output 41 rows"):
        anchor_free_head(output[1:], (32, 64))
