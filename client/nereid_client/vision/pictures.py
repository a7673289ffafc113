"""Files to pixels, pixels to what networks expect; needs Pillow to decode, and to resize arrays."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from nereid_client.vision.arrays import Array, as_type, backend_of, constant, library

if TYPE_CHECKING:
    from PIL.Image import Image

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
    backend: str = "pillow",
) -> Array:
    """Decode a file into UINT8 [height, width, 3], upright (EXIF orientation), of 16 bits the upper 8.

    The limits are checked before anything is decoded: a file of a kilobyte may promise gigabytes of pixels.

    Args:
        backend: "opencv" decodes what Pillow finds to be within the limits; JPEGs differ by a few levels.

    Raises:
        PictureError: for a file of another format, beyond a limit, or damaged.
        ValueError: there is no such backend.
    """
    if backend not in ("pillow", "opencv"):
        raise ValueError(f"unknown backend '{backend}': expected pillow or opencv")
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(file) > max_bytes:
        raise PictureError(f"{len(file)} bytes exceed the limit of {max_bytes}")
    try:
        image: Image.Image = Image.open(io.BytesIO(file), formats=tuple(formats))
        if image.width * image.height > max_pixels:
            raise PictureError(f"{image.width} x {image.height} pixels exceed the limit of {max_pixels}")
        if backend == "opencv":
            return _by_opencv(file)
        return np.array(_rgb(ImageOps.exif_transpose(image)))
    except UnidentifiedImageError:
        raise PictureError(f"expected a {' or '.join(formats)} file") from None
    except (PictureError, ImportError):
        raise
    except Image.DecompressionBombError as error:  # Pillow's own limit, which an application may lift
        raise PictureError(str(error)) from None
    except Exception as error:  # a damaged file makes decoders raise errors of every kind
        raise PictureError(f"damaged file: {error}") from None


def _by_opencv(file: bytes) -> Array:
    from nereid_client.vision import on_opencv

    pixels = on_opencv.decode(file)
    if pixels is None:
        raise PictureError("damaged file")
    return pixels


def _rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits a pixel, which convert() would clip at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def resize(
    pixels: Array,
    size: tuple[int, int],
    method: str = "bilinear",
    box: Box | None = None,
    backend: str | None = None,
) -> Array:
    """Resize a picture, or the part of it in a box, to (height, width).

    Args:
        pixels: UINT8 [height, width, 3].
        size: height and width of the result.
        method: nearest, bilinear, bicubic or lanczos; all but nearest average what becomes one pixel.
            On a GPU bilinear differs by one level at most; the last two where they overshoot 0 or 255.
        box: left, top, right and bottom in pixels; may lie between pixels.
        backend: "opencv" for arrays of numpy: nearest or bilinear, no box between pixels, and where a picture
            shrinks, equal weights for what becomes one pixel.

    Raises:
        ValueError: OpenCV does not have the method, or take the box.
    """
    match backend_of(pixels, backend):
        case "torch":
            return _resized_tensor(pixels, size, method, box)
        case "opencv":
            from nereid_client.vision import on_opencv

            return on_opencv.resize(_part(pixels, box), size, method)
    from PIL import Image

    resampling = Image.Resampling[method.upper()]
    return np.array(Image.fromarray(pixels).resize((size[1], size[0]), resampling, box=box))


def _resized_tensor(pixels: Array, size: tuple[int, int], method: str, box: Box | None) -> Array:
    from nereid_client.vision import on_torch

    if pixels.device.type == "cpu":  # Pillow is the fastest there
        return library(pixels).from_numpy(resize(pixels.numpy(), size, method, box))
    return on_torch.resize(pixels, size, method, box or (0, 0, pixels.shape[1], pixels.shape[0]))


def _part(pixels: Array, box: Box | None) -> Array:
    """Return the pixels within a box."""
    if box is None:
        return pixels
    left, top, right, bottom = (int(side) for side in box)
    if (left, top, right, bottom) != tuple(box):
        raise ValueError(f"OpenCV does not resize a box that lies between pixels: {tuple(box)}")
    return pixels[top:bottom, left:right]


def normalise(
    pixels: Array,
    mean: float | Sequence[float] = 0,
    scale: float | Sequence[float] = 255,
    planes: bool = True,
    backend: str | None = None,
) -> Array:
    """Return (pixels - mean) / scale as FP32, of all channels or of each its own.

    Args:
        pixels: [.., height, width, channels].
        mean: subtracted; of ImageNet (123.675, 116.28, 103.53).
        scale: divides; of ImageNet (58.395, 57.12, 57.375).
        planes: whether the channels come first, [.., channels, height, width], as most networks have them.
        backend: "opencv" for one UINT8 array of numpy, [height, width, channels]; the result is the same.
    """
    xp = library(pixels)
    if backend_of(pixels, backend) == "opencv":
        tensor = _looked_up(pixels, mean, scale)
    else:
        tensor = (as_type(pixels, "float32") - constant(mean, pixels)) / constant(scale, pixels)
    if not planes:
        return tensor
    moved = xp.moveaxis(tensor, -1, -3)
    return moved.contiguous() if xp is not np else np.ascontiguousarray(moved)


def _looked_up(pixels: Array, mean: float | Sequence[float], scale: float | Sequence[float]) -> Array:
    """Normalise by a table of what becomes of each of the 256 values."""
    from nereid_client.vision import on_opencv

    values = np.arange(256, dtype=np.float32)[:, np.newaxis].repeat(pixels.shape[-1], axis=1)
    return on_opencv.look_up(pixels, normalise(values, mean, scale, planes=False))
