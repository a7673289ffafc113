"""Files to pixels and to tensors: tests of the example models hold what these do with them."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nereid_client.vision import PictureError, decode, normalise, resize


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def test_pixels_are_those_of_the_file() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    assert np.array_equal(decode(encoded(Image.fromarray(pixels))), pixels)


def test_orientation_is_honoured() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned by a quarter to the left
    assert np.array_equal(decode(encoded(Image.fromarray(np.rot90(pixels)), exif=exif)), pixels)


def test_other_formats_may_be_allowed() -> None:
    file = encoded(Image.new("RGB", (2, 2)), "GIF")
    with pytest.raises(PictureError, match=r"^expected a JPEG or PNG file$"):
        decode(file)
    assert decode(file, formats=["GIF"]).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("limit_of_pillow", "said"),
    [
        (89_478_485, r"^Image size .2500000000 pixels. exceeds limit"),
        (None, "^50000 x 50000 pixels exceed the limit"),
    ],
)
def test_promise_of_gigabytes_is_refused(
    limit_of_pillow: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit_of_pillow)  # of the process: applications change it
    file = b"\x89PNG\r\n\x1a\n"
    for part in (
        b"IHDR" + struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0),
        b"IDAT" + zlib.compress(b""),
    ):
        file += struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
    with pytest.raises(PictureError, match=said):
        decode(file)


def test_limits() -> None:
    file = encoded(Image.new("RGB", (11, 10)))
    assert decode(file, max_bytes=len(file), max_pixels=110).shape == (10, 11, 3)
    with pytest.raises(PictureError, match="11 x 10 pixels exceed the limit of 109"):
        decode(file, max_pixels=109)
    with pytest.raises(PictureError, match=f"{len(file)} bytes exceed the limit of {len(file) - 1}"):
        decode(file, max_bytes=len(file) - 1)


def test_resize_takes_a_part() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[2:, 4:] = 90
    assert (resize(pixels, (3, 5), "nearest", box=(4, 2, 6, 4)) == 90).all()
    assert resize(pixels, (3, 5)).shape == (3, 5, 3)
    assert resize(pixels, (2, 3))[..., 0].tolist() == resize(pixels[..., 0], (2, 3)).tolist()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_normalised_tensors(batch: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*batch, 2, 3, 3), np.uint8)
    mean, scale = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    expected = (pixels.astype(np.float64) - mean) / scale
    planes = normalise(pixels, mean, scale)
    assert planes.shape == (*batch, 3, 2, 3) and planes.flags.c_contiguous
    assert planes.dtype == np.float32
    assert np.allclose(planes, np.moveaxis(expected, -1, -3), atol=1e-5)
    assert np.allclose(normalise(pixels, mean, scale, planes=False), expected, atol=1e-5)
    assert normalise(np.full((1, 1, 3), 255, np.uint8)).ravel().tolist() == [1, 1, 1]
