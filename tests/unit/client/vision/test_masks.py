"""Instance masks against their definition, pixel by pixel; keypoints."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nereid_client.vision import Letterbox, detect_with_extras, instance_masks, keypoints, letterbox

Array = npt.NDArray[Any]


def defined(values: Array, place: Letterbox, size: tuple[int, int], box: Array, least: float) -> Array:
    """Interpolate at the middle of each pixel, by the definition."""
    mask = np.zeros((place.height, place.width), bool)
    left, top, right, bottom = place.to_picture(box[None])[0]
    for row in range(place.height):
        for column in range(place.width):
            y = ((row + 0.5) * place.scale_y + place.top) * values.shape[0] / size[0] - 0.5
            x = ((column + 0.5) * place.scale_x + place.left) * values.shape[1] / size[1] - 0.5
            weights_y = (1 - np.abs(np.arange(values.shape[0]) - min(max(y, 0), values.shape[0] - 1))).clip(0)
            weights_x = (1 - np.abs(np.arange(values.shape[1]) - min(max(x, 0), values.shape[1] - 1))).clip(0)
            inside = left < column + 1 and column < right and top < row + 1 and row < bottom
            mask[row, column] = inside and 1 / (1 + np.exp(-(weights_y @ values @ weights_x))) >= least
    return mask


@pytest.mark.parametrize("source", [(20, 30), (30, 14), (9, 9)])
@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_masks_are_their_definition(source: tuple[int, int], threshold: float) -> None:
    random = np.random.default_rng(1)
    _, place = letterbox(np.zeros((*source, 3), np.uint8), (32, 32))
    prototypes, coefficients = random.standard_normal((3, 8, 8)), random.standard_normal((4, 3))
    boxes = np.array([[0, 0, 32, 32], [5.5, 9, 21.25, 24], [-9, -9, 50, 50], [7, 7, 7, 7]], np.float32)
    masks = instance_masks(prototypes, coefficients, boxes, place, (32, 32), threshold)
    for mask, weights, box in zip(masks, coefficients, boxes, strict=True):
        values = np.tensordot(weights, prototypes, 1)
        assert np.array_equal(mask, defined(values, place, (32, 32), box, threshold))


def test_an_object_is_where_its_prototype_is() -> None:
    """A disc as a network of a 4th of the size sees it."""
    _, place = letterbox(np.zeros((240, 320, 3), np.uint8), (160, 160))
    y, x = np.mgrid[0:40, 0:40]
    inside = 6 - np.hypot(x * 4 + 2 - 100, y * 4 + 2 - 70) / 4  # of a radius of 24 pixels of the input
    rows = np.zeros((2, 4 + 1 + 2), np.float32)
    rows[0] = [100, 70, 50, 50, 0.9, 1, 0]
    found, coefficients = detect_with_extras(rows, 2)
    assert found.boxes.tolist() == [[75, 45, 125, 95]]
    (mask,) = instance_masks(np.stack([inside, -inside]), coefficients, found.boxes, place, (160, 160))
    height, width = np.mgrid[0:240, 0:320] + 0.5
    disc = np.hypot(width - 200, height - (70 - 20) * 2) < 48
    assert (mask ^ disc).sum() < 0.02 * disc.sum()


def test_no_masks() -> None:
    _, place = letterbox(np.zeros((10, 20, 3), np.uint8), (32, 32))
    masks = instance_masks(np.ones((3, 8, 8)), np.zeros((0, 3)), np.zeros((0, 4)), place, (32, 32))
    assert (masks.shape, masks.dtype) == ((0, 10, 20), np.bool_)


def test_keypoints_belong_to_their_objects() -> None:
    rows = np.zeros((3, 4 + 1 + 6), np.float32)
    rows[:, :5] = [[10, 10, 8, 8, 0.5], [11, 10, 8, 8, 0.9], [40, 40, 8, 8, 0.7]]
    rows[:, 5:] = np.arange(18).reshape(3, 6)
    found, extras = detect_with_extras(rows, 6)
    assert found.scores.tolist() == pytest.approx([0.9, 0.7])
    points, scores = keypoints(extras)
    assert points.tolist() == [[[6, 7], [9, 10]], [[12, 13], [15, 16]]]
    assert scores.tolist() == [[8, 11], [14, 17]]
    points, scores = keypoints(extras[:, :4], scored=False)
    assert points.tolist() == [[[6, 7], [8, 9]], [[12, 13], [14, 15]]]
    assert scores.tolist() == [[1, 1], [1, 1]]
    assert keypoints(extras[:0]).points.shape == (0, 2, 2)
