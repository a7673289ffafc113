"""Files to pixels, pixels to the tensors that networks expect. Needs Pillow, except for `normalise`."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

Array = npt.NDArray[Any]
Box = tuple[float, float, float, float]

MAX_BYTES: Final = 20 << 20
MAX_PIXELS: Final = 50_000_000


class PictureError(ValueError):
    """A file that is not decoded; the text says why, and may be sent to the client."""


def decode(
    file: bytes,
    max_bytes: int = MAX_BYTES,
    max_pixels: int = MAX_PIXELS,
    formats: Sequence[str] = ("JPEG", "PNG"),
) -> Array:
    """Decode a file into UINT8 [height, width, 3], upright (EXIF orientation), of 16 bits the upper 8.

    The limits are checked before anything is decoded: a file of a kilobyte may promise gigabytes of pixels.

    Raises:
        PictureError: for a file of another format, beyond a limit, or damaged.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(file) > max_bytes:
        raise PictureError(f"{len(file)} bytes exceed the limit of {max_bytes}")
    try:
        image: Image.Image = Image.open(io.BytesIO(file), formats=tuple(formats))
        if image.width * image.height > max_pixels:
            raise PictureError(f"{image.width} x {image.height} pixels exceed the limit of {max_pixels}")
        return np.array(_rgb(ImageOps.exif_transpose(image)))
    except UnidentifiedImageError:
        raise PictureError(f"expected a {' or '.join(formats)} file") from None
    except PictureError:
        raise
    except Image.DecompressionBombError as error:  # Pillow's own limit, which an application may lift
        raise PictureError(str(error)) from None
    except Exception as error:  # a damaged file makes decoders raise errors of every kind
        raise PictureError(f"damaged file: {error}") from None


def _rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits a pixel, which convert() would clip at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def resize(pixels: Array, size: tuple[int, int], method: str = "bilinear", box: Box | None = None) -> Array:
    """Resize a picture, or the part of it in a box, to (height, width).

    Args:
        pixels: UINT8 [height, width, 3].
        size: height and width of the result.
        method: nearest, bilinear, bicubic or lanczos; all but nearest average what becomes one pixel.
        box: left, top, right and bottom in pixels; may lie between pixels.
    """
    from PIL import Image

    resampling = Image.Resampling[method.upper()]
    return np.array(Image.fromarray(pixels).resize((size[1], size[0]), resampling, box=box))


def normalise(
    pixels: Array,
    mean: float | Sequence[float] = 0,
    scale: float | Sequence[float] = 255,
    planes: bool = True,
) -> Array:
    """Return (pixels - mean) / scale as FP32, of all channels or of each its own.

    Args:
        pixels: [.., height, width, channels].
        mean: subtracted; of ImageNet (123.675, 116.28, 103.53).
        scale: divides; of ImageNet (58.395, 57.12, 57.375).
        planes: whether the channels come first, [.., channels, height, width], as most networks have them.
    """
    tensor = (pixels.astype(np.float32) - np.asarray(mean, np.float32)) / np.asarray(scale, np.float32)
    return np.ascontiguousarray(np.moveaxis(tensor, -1, -3)) if planes else tensor
