"""What OpenCV does in place of Pillow and numpy, where it is installed and asked for."""

from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_LOWEST: Final = float(np.finfo(np.float32).min)


def decode(file: bytes) -> Array | None:
    """Decode a file into UINT8 [height, width, 3] in RGB, upright; None if it is damaged."""
    pixels: Array | None = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR_RGB)
    return pixels


def resize(pixels: Array, size: tuple[int, int], method: str) -> Array:
    """Resize UINT8 [height, width, channels] to (height, width).

    Raises:
        ValueError: for other methods than nearest and bilinear: OpenCV's do not average where it shrinks.
    """
    if method not in ("nearest", "bilinear"):
        raise ValueError(f"OpenCV does not have the method '{method}': expected one of nearest, bilinear")
    shrinks = size[0] < pixels.shape[0] or size[1] < pixels.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    if method == "nearest":
        how = cv2.INTER_NEAREST_EXACT
    return np.asarray(cv2.resize(pixels, (size[1], size[0]), interpolation=how)).reshape(*size, -1)


def look_up(pixels: Array, table: Array) -> Array:
    """Return what a table [256, channels] has for pixels UINT8 [height, width, channels], of its type."""
    return np.asarray(cv2.LUT(pixels, table[:, np.newaxis])).reshape(pixels.shape)


def nms(boxes: Array, scores: Array, classes: Array | None, iou_threshold: float) -> Array:
    """Return the indices of boxes that overlap no better one of their class, the best first, INT64."""
    if not len(boxes):
        return np.zeros(0, np.int64)
    sized = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1).astype(np.float64)
    numbers = np.zeros(len(boxes), np.int32) if classes is None else classes.astype(np.int32)
    kept = cv2.dnn.NMSBoxesBatched(sized, scores.astype(np.float32), numbers, _LOWEST, iou_threshold)
    return np.asarray(kept, np.int64).ravel()
