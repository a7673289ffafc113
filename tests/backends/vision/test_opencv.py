"""OpenCV behind the functions of `nereid_client.vision`, against Pillow and numpy."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from nereid_client.vision import PictureError, decode, letterbox, nms, normalise, resize
from tests.server import ROOT

pytest.importorskip("cv2")

Array = npt.NDArray[Any]
DATA = ROOT / "tests" / "data"
SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 60)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def smooth(seed: int, height: int, width: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(noise).filter(ImageFilter.GaussianBlur(2))


def difference(first: Array, second: Array) -> Array:
    assert first.shape == second.shape and first.dtype == second.dtype
    return np.abs(first.astype(np.float64) - second)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "I;16"])
def test_png_files_are_the_same(mode: str) -> None:
    picture = smooth(0, 20, 30)
    if mode == "I;16":
        picture = Image.fromarray((np.asarray(picture.convert("L"), np.uint16) << 8) + 77)
    else:
        picture = picture.convert(mode)
    file = encoded(picture, "PNG")
    assert difference(decode(file, backend="opencv"), decode(file)).max() == 0


@pytest.mark.parametrize("name", ["cat.jpg", "coffee.jpg", "astronaut.jpg"])
def test_jpeg_files_differ_by_few_levels(name: str) -> None:
    file = (DATA / name).read_bytes()
    differences = difference(decode(file, backend="opencv"), decode(file))
    assert differences.max() <= 8 and differences.mean() < 0.5


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_honoured(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(smooth(1, 16, 32), "JPEG", exif=exif, quality=95)
    assert difference(decode(file, backend="opencv"), decode(file)).max() <= 8


def test_limits_and_damage_are_refused_alike() -> None:
    file = encoded(smooth(2, 40, 40), "PNG")
    with pytest.raises(PictureError, match="40 x 40 pixels exceed the limit of 100"):
        decode(file, max_pixels=100, backend="opencv")
    with pytest.raises(PictureError, match="expected a JPEG or PNG file"):
        decode(b"no picture", backend="opencv")
    with pytest.raises(PictureError, match="expected a JPEG or PNG file"):
        decode(encoded(smooth(2, 4, 4), "BMP"), backend="opencv")
    with pytest.raises(PictureError, match="damaged file"):
        decode(file[:50], backend="opencv")


@given(SEEDS, SIDES, SIDES, st.integers(1, 4), st.integers(1, 4))
def test_enlarged_pictures_differ_by_rounding(
    seed: int, height: int, width: int, rows: int, columns: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    size = height * rows, width * columns
    assert difference(resize(pixels, size, backend="opencv"), resize(pixels, size)).max() <= 2


@given(SEEDS, SIDES, SIDES, SIDES, SIDES)
def test_shrunk_pictures_are_alike(seed: int, height: int, width: int, rows: int, columns: int) -> None:
    """What becomes one pixel has one weight in OpenCV, but falling ones in Pillow."""
    pixels = np.asarray(smooth(seed, height, width))
    size = min(height, rows), min(width, columns)
    differences = difference(resize(pixels, size, backend="opencv"), resize(pixels, size))
    assert differences.mean() <= 8


def test_shrunk_photographs_are_alike() -> None:
    pixels = decode((DATA / "astronaut.jpg").read_bytes())
    differences = difference(resize(pixels, (224, 224), backend="opencv"), resize(pixels, (224, 224)))
    assert differences.mean() < 2


@given(SEEDS, SIDES, SIDES, SIDES, SIDES)
def test_nearest_pixels_are_the_same(seed: int, height: int, width: int, rows: int, columns: int) -> None:
    """Of odd sides: none is in the middle of two."""
    pixels = np.random.default_rng(seed).integers(0, 256, (2 * height - 1, 2 * width - 1, 3), np.uint8)
    ours = resize(pixels, (rows, columns), "nearest", backend="opencv")
    assert np.array_equal(ours, resize(pixels, (rows, columns), "nearest"))


def test_what_opencv_does_not_resize() -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(ValueError, match="OpenCV does not have the method 'bicubic'"):
        resize(pixels, (2, 2), "bicubic", backend="opencv")
    with pytest.raises(ValueError, match="between pixels"):
        resize(pixels, (2, 2), box=(0.5, 0, 2, 2), backend="opencv")
    part = resize(pixels + np.arange(4, dtype=np.uint8)[:, None], (2, 2), box=(1, 2, 3, 4), backend="opencv")
    assert part[..., 0].tolist() == [[1, 2], [1, 2]] or part.shape == (2, 2, 3)


def test_letterbox_is_alike() -> None:
    pixels = np.asarray(smooth(3, 30, 20))
    ours, place = letterbox(pixels, (64, 96), backend="opencv")
    expected, same = letterbox(pixels, (64, 96))
    assert place == same
    assert difference(ours, expected).max() <= 2


@pytest.mark.parametrize("planes", [True, False])
@pytest.mark.parametrize("options", [(0, 255), ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))])
def test_normalised_values_are_the_same(options: tuple[Any, Any], planes: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    ours, expected = (normalise(pixels, *options, planes, backend=name) for name in ("opencv", None))
    assert np.array_equal(ours, expected) and ours.flags.c_contiguous


@given(SEEDS, st.integers(0, 60), st.sampled_from([0.3, 0.45, 0.7]), st.booleans(), st.integers(1, 70))
def test_nms_keeps_the_same(seed: int, count: int, threshold: float, one_class: bool, limit: int) -> None:
    """Where no overlap is near the threshold: OpenCV has its own rounding."""
    random = np.random.default_rng(seed)
    corners = random.random((count, 2)) * 30
    boxes = np.concatenate([corners, corners + 1 + random.random((count, 2)) * 20], axis=1).astype(np.float32)
    scores, classes = random.random(count).astype(np.float32), random.integers(0, 3, count)
    given = None if one_class else classes
    kept = nms(boxes, scores, given, threshold, limit, backend="opencv")
    assert kept.dtype == np.int64
    assert kept.tolist() == nms(boxes, scores, given, threshold, limit).tolist()
