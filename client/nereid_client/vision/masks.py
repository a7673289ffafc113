"""Masks of objects, from the prototypes of a YOLO network and the coefficients of each detection."""

from math import ceil, floor, log

from nereid_client.vision.arrays import Array, as_type, library
from nereid_client.vision.letterbox import Letterbox


def instance_masks(
    prototypes: Array,
    coefficients: Array,
    boxes: Array,
    place: Letterbox,
    size: tuple[int, int],
    threshold: float = 0.5,
) -> Array:
    """Return which pixels of the picture, within its box, belong to each object, BOOL [n, height, width].

    The sum of the prototypes, by an object's coefficients, is interpolated (bilinear) at the middle of each
    pixel; its sigmoid is compared with the threshold.

    Args:
        prototypes: FP32 [k, rows, columns], which cover the network's input.
        coefficients: FP32 [n, k], from `detect_with_extras`.
        boxes: FP32 [n, 4] in pixels of the network's input, as it gives them.
        place: where the picture lies in the network's input.
        size: height and width of that input.
        threshold: least probability.
    """
    xp = library(prototypes)
    masks = xp.zeros((len(boxes), place.height, place.width), dtype=xp.bool, device=prototypes.device)
    cells = prototypes.shape[1] / size[0], prototypes.shape[2] / size[1]
    least = log(threshold / (1 - threshold))
    for mask, weights, box in zip(masks, coefficients, place.to_picture(boxes).tolist(), strict=True):
        left, top, right, bottom = floor(box[0]), floor(box[1]), ceil(box[2]), ceil(box[3])
        if left >= right or top >= bottom:
            continue
        y = (_middles(top, bottom, mask) * place.scale_y + place.top) * cells[0] - 0.5
        x = (_middles(left, right, mask) * place.scale_x + place.left) * cells[1] - 0.5
        values = xp.tensordot(weights, prototypes, 1)
        values = _between(_between(values, y).T, x).T
        mask[top:bottom, left:right] = values >= least
    return masks


def _middles(first: int, end: int, like: Array) -> Array:
    """Return the middles of pixels, FP32 [end - first]."""
    xp = library(like)
    return xp.arange(first, end, dtype=xp.float32, device=like.device) + 0.5


def _between(values: Array, places: Array) -> Array:
    """Interpolate between rows of values [n, m], at places [k]; beyond the first and last rows are these."""
    places = places.clip(0, len(values) - 1)
    below = as_type(places, "int64")
    share = (places - below)[:, None]
    return values[below] * (1 - share) + values[(below + 1).clip(0, len(values) - 1)] * share
