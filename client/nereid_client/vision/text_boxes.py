"""Lines of text in the map of a text detector of the kind DB (differentiable binarisation)."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Runs = list[tuple[int, int, int]]
"""Pixels of a region: row, start and end, rows ascending."""


class TextBoxes(NamedTuple):
    """Lines of text, in the order in which the map has their first pixels.

    Attributes:
        corners: FP32 [n, 4, 2] of x and y in pixels of the map, clockwise from the upper left one of the line
            as it is read, if it is tilted by less than an eighth of a turn. They may lie outside of the map.
        scores: FP32 [n], mean of the pixels.
    """

    corners: Array
    scores: Array


def text_boxes(
    probability: Array,
    pixel_threshold: float = 0.3,
    box_threshold: float = 0.5,
    unclip_ratio: float = 1.6,
    smallest: int = 3,
    upright: bool = False,
) -> TextBoxes:
    """Return the rectangles around the lines of text in a map of probabilities.

    The network has been trained to shrink lines, so the smallest rectangle around a region is grown again, by
    area * ratio / perimeter on each side.

    Args:
        probability: [height, width], from 0 to 1.
        pixel_threshold: pixels above it that touch, also at a corner, are a region.
        box_threshold: regions with a lower mean go.
        unclip_ratio: how far a rectangle grows.
        smallest: regions go whose rectangle is narrower, in pixels.
        upright: whether rectangles have the directions of the picture; otherwise each has its own.
    """
    corners, scores = [], []
    for runs in _regions(probability > pixel_threshold):
        score = np.concatenate([probability[y, start:end] for y, start, end in runs]).mean()
        if score < box_threshold:
            continue
        hull = _hull(np.array([(x, row) for y, *ends in runs for x in ends for row in (y, y + 1)]))
        direction, low, high = _rectangle(hull, upright)
        width, height = high - low
        if min(width, height) < smallest:
            continue
        margin = unclip_ratio * width * height / (2 * (width + height))
        corners.append(_corners(direction, low - margin, high + margin))
        scores.append(score)
    return TextBoxes(np.array(corners, np.float32).reshape(-1, 4, 2), np.array(scores, np.float32))


def _regions(mask: Array) -> list[Runs]:
    """Return the pixels that touch, also at a corner, of each region."""
    found: dict[tuple[int, int], Runs] = {}  # by the region's key
    above: list[tuple[int, int, tuple[int, int]]] = []  # start, end and key of the runs in the row above
    for y, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0)).tolist()
        here: list[tuple[int, int, tuple[int, int]]] = []
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            touching = {key for first, last, key in above if first <= end and start <= last}
            key = min(touching, default=(y, start))
            runs = found.setdefault(key, [])
            for other in touching - {key}:
                runs += found.pop(other)
                above = [(a, b, key if k == other else k) for a, b, k in above]
                here = [(a, b, key if k == other else k) for a, b, k in here]
            runs.append((y, start, end))
            here.append((start, end, key))
        above = here
    return [sorted(runs) for runs in found.values()]


def _hull(points: Array) -> Array:
    """Return the corners of the convex hull of points [n, 2], in order around it."""
    ordered = sorted(set(map(tuple, points.tolist())))
    return np.array(_half(ordered) + _half(ordered[::-1]), np.float64)


def _half(ordered: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return one side of the hull of sorted points, without its last (Andrew's monotone chain)."""
    side: list[tuple[int, ...]] = []
    for x, y in ordered:
        while len(side) > 1:
            (x1, y1), (x2, y2) = side[-2:]
            if (x2 - x1) * (y - y1) > (y2 - y1) * (x - x1):
                break
            side.pop()
        side.append((x, y))
    return side[:-1]


def _rectangle(hull: Array, upright: bool) -> tuple[Array, Array, Array]:
    """Return the direction of the smallest rectangle around a hull, [2], and its extents along and across it.

    It has a side along one of the hull's. The direction is turned by quarters to within 45 degrees of the x
    axis.
    """
    sides = np.roll(hull, -1, axis=0) - hull
    angles = np.zeros(1) if upright else np.arctan2(sides[:, 1], sides[:, 0])
    angles = np.unique(angles - np.round(angles / (np.pi / 2)) * (np.pi / 2))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    along = hull @ directions.T
    across = hull @ (directions[:, ::-1] * (-1, 1)).T
    low = np.stack([along.min(axis=0), across.min(axis=0)], axis=1)
    high = np.stack([along.max(axis=0), across.max(axis=0)], axis=1)
    best = (high - low).prod(axis=1).argmin()
    return directions[best], low[best], high[best]


def _corners(direction: Array, low: Array, high: Array) -> Array:
    """Return the corners [4, 2] of a rectangle, clockwise in a picture, whose y grows downwards."""
    extents = np.array([low, (high[0], low[1]), high, (low[0], high[1])])
    axes = np.array([direction, (-direction[1], direction[0])])
    result: Array = extents @ axes
    return result
