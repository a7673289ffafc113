"""Pictures with bars, and boxes there and back."""

import numpy as np
import pytest

from nereid_client.vision import letterbox


@pytest.mark.parametrize(
    ("source", "inner", "corner"),
    [
        ((100, 200), (160, 320), (80, 0)),  # height and width; top and left
        ((200, 100), (320, 160), (0, 80)),
        ((320, 320), (320, 320), (0, 0)),
        ((33, 47), (225, 320), (47, 0)),
        ((1, 2000), (1, 320), (159, 0)),
    ],
)
def test_picture_lies_in_the_middle(
    source: tuple[int, int], inner: tuple[int, int], corner: tuple[int, int]
) -> None:
    result, place = letterbox(np.full((*source, 3), 200, np.uint8), (320, 320))
    assert result.shape == (320, 320, 3)
    inside = np.zeros((320, 320), bool)
    inside[corner[0] : corner[0] + inner[0], corner[1] : corner[1] + inner[1]] = True
    assert (result[inside] == 200).all() and (result[~inside] == 114).all()
    assert (place.top, place.left) == corner
    assert (place.height, place.width) == source


def test_boxes_convert_there_and_back() -> None:
    _, place = letterbox(np.zeros((333, 517, 3), np.uint8), (640, 480))
    boxes = np.array([[0, 0, 517, 333], [10.5, 20, 300, 200.25]], np.float32)
    inside = place.from_picture(boxes)
    assert inside[0].tolist() == [place.left, place.top, 480 - place.left, place.top + 309]
    assert np.allclose(place.to_picture(inside), boxes, atol=1e-3)


def test_box_finds_what_was_drawn() -> None:
    picture = np.zeros((200, 400, 3), np.uint8)
    picture[40:120, 100:260] = 255
    result, place = letterbox(picture, (640, 640), fill=0)
    rows, columns = np.nonzero(result[..., 0] > 127)
    found = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]], np.float32)
    assert np.abs(place.to_picture(found) - [[100, 40, 260, 120]]).max() <= 1


def test_boxes_are_cut_at_the_edges_of_the_picture() -> None:
    _, place = letterbox(np.zeros((100, 200, 3), np.uint8), (200, 200))
    assert place.to_picture(np.array([[-5, 0, 300, 200]], np.float32)).tolist() == [[0, 0, 200, 100]]


def test_points_convert_as_corners_of_boxes_do() -> None:
    _, place = letterbox(np.zeros((333, 517, 3), np.uint8), (640, 480))
    boxes = np.array([[[30, 200, 300, 220], [0, 0, 480, 640]]], np.float32)
    points = boxes.reshape(2, 2, 2)
    assert np.array_equal(place.to_picture(points).ravel(), place.to_picture(boxes).ravel())
    assert np.array_equal(place.from_picture(points).ravel(), place.from_picture(boxes).ravel())


@pytest.mark.parametrize("shape", [(0, 4), (0, 5, 2)])
def test_nothing_converts_to_nothing(shape: tuple[int, ...]) -> None:
    _, place = letterbox(np.zeros((10, 20, 3), np.uint8), (20, 20))
    assert place.to_picture(np.zeros(shape)).shape == place.from_picture(np.zeros(shape)).shape == shape


def test_small_picture_may_stay_small() -> None:
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    result, place = letterbox(picture, (6, 6), enlarge=False)
    assert np.array_equal(result[2:4, 2:4], picture)
    assert (place.scale_x, place.scale_y) == (1, 1)
