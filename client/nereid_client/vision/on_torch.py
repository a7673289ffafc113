"""Resizing of tensors of PyTorch on a GPU, as Pillow does it.

`torch.nn.functional.interpolate` has no parts between pixels and no antialiasing of UINT8 on a GPU, and in
FP32 its results differ from Pillow's by dozens of levels where little is left of a picture (2.13: 19 columns
to one).
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


def resize(
    pixels: torch.Tensor, size: tuple[int, int], method: str, box: tuple[float, float, float, float]
) -> torch.Tensor:
    """Resize the part of UINT8 [height, width, channels] in a box to (height, width)."""
    left, top, right, bottom = box
    if method == "nearest":
        rows, columns = _nearest(top, bottom, size[0]), _nearest(left, right, size[1])
        return pixels[_to(rows, pixels)][:, _to(columns, pixels)]
    across = _resample(pixels.movedim(1, 0).float(), left, right, size[1], method).movedim(0, 1)
    return _resample(across, top, bottom, size[0], method).to(torch.uint8)


def _resample(values: torch.Tensor, low: float, high: float, count: int, method: str) -> torch.Tensor:
    """Resize the first axis of FP32 values, to whole numbers from 0 to 255: Pillow rounds here too."""
    places, weights = _taps(low, high, count, len(values), method)
    total = torch.zeros((count, *values.shape[1:]), device=values.device)
    for tap in range(places.shape[1]):
        weight = _to(weights[:, tap, np.newaxis, np.newaxis], values)
        total.addcmul_(values[_to(places[:, tap], values)], weight)
    return total.add_(0.5).floor_().clip_(0, 255)


def _taps(low: float, high: float, count: int, length: int, method: str) -> tuple[Array, Array]:
    """Return what each value is made of: places INT64 [count, taps] and their weights FP32, of the sum 1."""
    support, filter_ = _FILTERS[method]
    scale = (high - low) / count
    reach = max(scale, 1)
    middles = low + (np.arange(count) + 0.5) * scale
    first = np.maximum(np.floor(middles - support * reach + 0.5), 0)
    end = np.minimum(np.floor(middles + support * reach + 0.5), length)
    places = first[:, np.newaxis] + np.arange(int((end - first).max()))
    weights = filter_(np.abs(places + 0.5 - middles[:, np.newaxis]) / reach) * (places < end[:, np.newaxis])
    weights /= weights.sum(axis=1, keepdims=True)
    return places.clip(0, length - 1).astype(np.int64), weights.astype(np.float32)


def _nearest(low: float, high: float, count: int) -> Array:
    return np.floor(low + (np.arange(count) + 0.5) * (high - low) / count).astype(np.int64)


def _to(array: Array, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(array).to(like.device)


def _triangle(distance: Array) -> Array:
    return (1 - distance).clip(0)


def _cubic(distance: Array) -> Array:
    """Keys' cubic convolution, with a = -0.5."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0))


def _lanczos(distance: Array) -> Array:
    return np.where(distance < 3, np.sinc(distance) * np.sinc(distance / 3), 0)


_FILTERS: Final[dict[str, tuple[float, Callable[[Array], Array]]]] = {
    "bilinear": (1, _triangle),
    "bicubic": (2, _cubic),
    "lanczos": (3, _lanczos),
}
"""Method: how far its weights reach, and their function of the distance."""
