"""Lines of text in maps of probabilities that are drawn."""

from math import atan2, cos, degrees, radians, sin
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from nereid_client.vision import text_boxes
from nereid_client.vision.text_boxes import _hull, _regions

Array = npt.NDArray[Any]


def drawn(*polygons: Array, size: tuple[int, int] = (200, 300)) -> Array:
    """A map that is 0.9 within polygons."""
    image = Image.new("L", size[::-1])
    for polygon in polygons:
        ImageDraw.Draw(image).polygon([tuple(point) for point in polygon.tolist()], fill=1)
    return np.asarray(image, np.float32) * np.float32(0.9)


def tilted(middle: tuple[float, float], width: float, height: float, angle: float) -> Array:
    """Corners of a rectangle, from the upper left one clockwise."""
    along = np.array([cos(radians(angle)), sin(radians(angle))]) * width / 2
    down = np.array([-sin(radians(angle)), cos(radians(angle))]) * height / 2
    corners: Array = np.array([-along - down, along - down, along + down, -along + down])
    corners += middle
    return corners


def test_upright_rectangles_grow_by_their_area_and_perimeter() -> None:
    map_ = np.zeros((60, 100), np.float32)
    map_[10:20, 30:70] = 0.8
    map_[40:50, 5:25] = 0.7
    found = text_boxes(map_, unclip_ratio=1.6)
    assert found.scores.tolist() == pytest.approx([0.8, 0.7])
    margins = [1.6 * 40 * 10 / 100, 1.6 * 20 * 10 / 60]
    sides = [(30, 10, 70, 20), (5, 40, 25, 50)]
    for corners, margin, box in zip(found.corners, margins, sides, strict=True):
        left, top, right, bottom = np.array(box) + np.array([-margin, -margin, margin, margin])
        expected = [[left, top], [right, top], [right, bottom], [left, bottom]]
        np.testing.assert_allclose(corners, expected, rtol=1e-5)


@given(st.floats(-44, 44), st.floats(60, 120), st.floats(12, 30))
def test_tilted_rectangles_are_found_in_their_direction(angle: float, width: float, height: float) -> None:
    wanted = tilted((150, 100), width, height, angle)
    found = text_boxes(drawn(wanted), unclip_ratio=0)
    assert np.abs(found.corners[0] - wanted).max() < 4
    top = found.corners[0, 1] - found.corners[0, 0]
    assert degrees(atan2(top[1], top[0])) == pytest.approx(angle, abs=3)


@given(st.integers(0, 2**32 - 1))
def test_rectangles_hold_their_pixels_and_are_no_larger_than_upright_ones(seed: int) -> None:
    random = np.random.default_rng(seed)
    map_ = drawn(*(random.random((4, 2)) * (60, 40) for _ in range(3)), size=(40, 60))
    own = text_boxes(map_, unclip_ratio=0, smallest=0).corners
    upright = text_boxes(map_, unclip_ratio=0, smallest=0, upright=True).corners
    assert len(own) == len(upright)
    for corners, box in zip(own, upright, strict=True):
        sides = np.roll(corners, -1, axis=0) - corners
        lengths = np.hypot(*sides.T)
        assert lengths[0] * lengths[1] <= (box[2] - box[0]).prod() * 1.0001
        assert abs(sides[0] @ sides[1]) < 1e-2
    inside = np.zeros(map_.shape, bool)
    y, x = np.nonzero(map_ > 0.3)
    for corners in own:
        sides = np.roll(corners, -1, axis=0) - corners
        to_pixel = np.stack([x + 0.5, y + 0.5], axis=1)[:, None] - corners
        turns = sides[:, 0] * to_pixel[..., 1] - sides[:, 1] * to_pixel[..., 0]
        inside[y, x] |= (turns > -1e-2).all(axis=1)
    assert inside[y, x].all()


def test_what_is_no_line_goes() -> None:
    map_ = np.zeros((60, 100), np.float32)
    map_[5:15, 5:45] = 0.4  # above the threshold of pixels, below that of boxes
    map_[30:32, 5:45] = 0.9  # narrower than three pixels
    map_[50, 50] = 0.9
    assert text_boxes(map_).corners.shape == (0, 4, 2)
    assert text_boxes(map_).scores.shape == (0,)
    assert len(text_boxes(map_, box_threshold=0.3, smallest=1).corners) == 3
    assert len(text_boxes(np.zeros((0, 0))).corners) == 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=30))
def test_hull_goes_around_all_points(points: list[tuple[int, int]]) -> None:
    outline = np.array([(x + dx, y + dy) for x, y in points for dx in (0, 1) for dy in (0, 1)])
    hull = _hull(outline)
    sides = np.roll(hull, -1, axis=0) - hull
    turns = (
        sides[:, None, 0] * (outline - hull[:, None])[..., 1]
        - sides[:, None, 1] * (outline - hull[:, None])[..., 0]
    )
    assert (turns >= 0).all()
    following = np.roll(sides, -1, axis=0)
    assert (sides[:, 0] * following[:, 1] - sides[:, 1] * following[:, 0] > 0).all()


def test_regions_touch_at_corners_and_join_late() -> None:
    drawing = ["#.#..", "#.#.#", ".#..#", "....."]
    mask = np.array([[letter == "#" for letter in row] for row in drawing])
    sizes = [sum(end - start for _, start, end in runs) for runs in _regions(mask)]
    assert sorted(sizes) == [2, 5]
