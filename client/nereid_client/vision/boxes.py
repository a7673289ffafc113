"""Boxes and their overlap."""

from typing import NamedTuple

from nereid_client.vision.arrays import Array, library


class Detections(NamedTuple):
    """Objects in a picture, the best first: boxes FP32 [n, 4], scores FP32 [n], classes INT64 [n]."""

    boxes: Array
    scores: Array
    classes: Array


def to_corners(boxes: Array) -> Array:
    """Convert (centre x, centre y, width, height) [n, 4] to (left, top, right, bottom)."""
    half = boxes[:, 2:] / 2
    return library(boxes).concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def iou(first: Array, second: Array) -> Array:
    """Return the intersection over union of each of n boxes with each of m, [n, m]; 0 without any area."""
    xp = library(first)
    corner = xp.maximum(first[:, None, :2], second[None, :, :2])
    opposite = xp.minimum(first[:, None, 2:], second[None, :, 2:])
    common = (opposite - corner).clip(0).prod(axis=2)
    union = _areas(first)[:, None] + _areas(second)[None] - common
    return common / xp.where(union > 0, union, 1)


def _areas(boxes: Array) -> Array:
    return (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
