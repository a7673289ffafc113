"""Pictures of any size in one of fixed size, with their proportions kept and bars at the sides."""

from typing import NamedTuple

from nereid_client.vision.arrays import Array, as_type, constant, library
from nereid_client.vision.pictures import resize


class Letterbox(NamedTuple):
    """Where a picture lies in the one with bars.

    Attributes:
        scale_x, scale_y: size of the picture in it, by its own; they differ by less than a pixel.
        left, top: the picture's corner in it, in pixels.
        height, width: the picture's own size.
    """

    scale_x: float
    scale_y: float
    left: int
    top: int
    height: int
    width: int

    def to_picture(self, places: Array) -> Array:
        """Convert boxes [.., 4] or points [.., 2] from the picture with bars to FP32 in the picture.

        What lies outside of the picture moves to its edge.
        """
        moved = (_points(places) - self._shift(places)) / self._scale(places)
        inside = library(places).minimum(moved.clip(0), constant([self.width, self.height], places))
        return as_type(inside.reshape(places.shape), "float32")

    def from_picture(self, places: Array) -> Array:
        """Convert boxes [.., 4] or points [.., 2] from the picture to FP32 in the one with bars."""
        moved = _points(places) * self._scale(places) + self._shift(places)
        return as_type(moved.reshape(places.shape), "float32")

    def _shift(self, like: Array) -> Array:
        return constant([self.left, self.top], like)

    def _scale(self, like: Array) -> Array:
        return constant([self.scale_x, self.scale_y], like)


def _points(places: Array) -> Array:
    """Return points, or the two corners of boxes, [.., 2]."""
    return places.reshape(*places.shape[:-1], places.shape[-1] // 2, 2)


def letterbox(
    pixels: Array,
    size: tuple[int, int],
    fill: int = 114,
    enlarge: bool = True,
    backend: str | None = None,
) -> tuple[Array, Letterbox]:
    """Fit a picture into (height, width), in the middle, with bars of one colour.

    Args:
        pixels: UINT8 [height, width, 3].
        size: height and width of the result.
        fill: the value of the bars; 114 is what YOLO networks have been trained with.
        enlarge: whether a smaller picture is enlarged.
        backend: as for `resize`.

    Returns:
        The picture with bars, and what converts boxes between the two.
    """
    height, width = pixels.shape[:2]
    scale = min(size[0] / height, size[1] / width)
    if not enlarge:
        scale = min(scale, 1)
    inner = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    xp = library(pixels)
    result = xp.full((*size, pixels.shape[2]), fill, dtype=xp.uint8, device=pixels.device)
    fitted = pixels if inner == (height, width) else resize(pixels, inner, backend=backend)
    result[top : top + inner[0], left : left + inner[1]] = fitted
    return result, Letterbox(inner[1] / width, inner[0] / height, left, top, height, width)
