"""The Python models of the example repository, on a stand-in for pb_utils."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw, ImageFont

from nereid_client.vision import letterbox, normalise
from tests.unit.model_repository.conftest import DATA, Load, Run
from tests.unit.model_repository.fake_pb_utils import Request


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def images(*files: bytes) -> npt.NDArray[Any]:
    array = np.empty((len(files), 1), dtype=object)
    array[:, 0] = files
    return array


@pytest.fixture
def preprocess(load_python: Load) -> Any:
    return load_python("image_preprocess", max_bytes=1 << 20, max_pixels=1_000_000)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16", "CMYK"])
@pytest.mark.parametrize("size", [(224, 224), (300, 451), (1, 1), (3, 900)])
def test_any_picture_becomes_a_tensor(preprocess: Any, mode: str, size: tuple[int, int]) -> None:
    file = encoded(Image.new(mode, size), "JPEG" if mode == "CMYK" else "PNG")
    (response,) = preprocess.execute([Request(image=images(file))])
    assert response.error is None
    pixels = response.outputs["pixels"]
    assert (pixels.shape, pixels.dtype) == ((1, 3, 224, 224), np.float32)
    assert -1 <= pixels.min() <= pixels.max() <= 1


def test_values_are_scaled(preprocess: Any) -> None:
    (response,) = preprocess.execute(
        [Request(image=images(encoded(Image.new("RGB", (256, 256), (255, 127, 0)))))]
    )
    assert response.outputs["pixels"][0, :, 100, 100].tolist() == [1.0, 0.0, -127 / 128]


def test_sixteen_bits_are_scaled_not_clipped(preprocess: Any) -> None:
    grey = Image.fromarray(np.full((256, 256), 0x8000, np.uint16))
    (response,) = preprocess.execute([Request(image=images(encoded(grey)))])
    assert response.outputs["pixels"][0, 0, 0, 0] == 1 / 128


def test_orientation_is_honoured(preprocess: Any) -> None:
    upright = Image.new("RGB", (256, 256))
    upright.paste((255, 255, 255), (0, 0, 256, 128))
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    turned = encoded(upright.rotate(180), exif=exif)
    (response,) = preprocess.execute([Request(image=images(encoded(upright), turned))])
    pixels = response.outputs["pixels"]
    assert np.array_equal(pixels[0], pixels[1])
    assert pixels[1, 0, 10, 100] == 1


def test_batches_answer_in_order(preprocess: Any) -> None:
    files = [encoded(Image.new("L", (32, 32), shade)) for shade in (0, 127, 255)]
    first, second = preprocess.execute([Request(image=images(*files[:2])), Request(image=images(files[2]))])
    assert first.outputs["pixels"][:, 0, 0, 0].tolist() == [-127 / 128, 0.0]
    assert second.outputs["pixels"][:, 0, 0, 0].tolist() == [1.0]


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises a size and holds next to nothing."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (header, data)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "input 'image': expected a JPEG or PNG file"),
        (b"not a picture", "input 'image': expected a JPEG or PNG file"),
        (encoded(Image.new("RGB", (8, 8)), "GIF"), "input 'image': expected a JPEG or PNG file"),
        (b"\xff" * ((1 << 20) + 1), "input 'image': 1048577 bytes exceed the limit of 1048576"),
        (png_header(50000, 50000), "input 'image': 50000 x 50000 pixels exceed the limit of 1000000"),
        (
            encoded(Image.new("L", (1001, 1000))),
            "input 'image': 1001 x 1000 pixels exceed the limit of 1000000",
        ),
    ],
)
def test_refusals_concern_one_request(preprocess: Any, file: bytes, message: str) -> None:
    good = encoded(Image.new("RGB", (8, 8)))
    refused, served = preprocess.execute([Request(image=images(good, file)), Request(image=images(good))])
    assert (refused.error.message, refused.error.code) == (message, 3)
    assert served.error is None


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.99])
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_damaged_files_are_refused(preprocess: Any, form: str, keep: float) -> None:
    file = encoded(Image.open(DATA / "cat.jpg"), form)
    (response,) = preprocess.execute([Request(image=images(file[: int(len(file) * keep)]))])
    assert response.error.message.startswith("input 'image': damaged file: ")


def test_damaged_orientation_is_refused(preprocess: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = encoded(Image.new("RGB", (8, 8)), "JPEG", exif=exif)
    for byte in range(file.index(b"Exif"), file.index(b"Exif") + 40):
        damaged = file[:byte] + b"\xa5" + file[byte + 1 :]
        (response,) = preprocess.execute([Request(image=images(damaged))])
        assert response.error is None or response.error.message.startswith("input 'image': ")


@pytest.mark.parametrize("model", ["identity_fp32", "simple_identity"])
def test_identity(load_python: Load, model: str) -> None:
    values = (
        np.array([[b"a", b""]], dtype=object) if model == "simple_identity" else np.ones((1, 2), np.float32)
    )
    (response,) = load_python(model).execute([Request(INPUT0=values)])
    assert response.outputs["OUTPUT0"] is values


@pytest.mark.parametrize("n", [0, 1, 3])
def test_square(load_python: Load, n: int) -> None:
    request = Request(IN=np.array([n], np.int32))
    assert load_python("square_int32").execute([request]) is None
    assert [response.outputs["OUT"].tolist() for response in request.sent] == [[n]] * n
    assert request.final


def repeat_request(values: list[int], delays: list[int]) -> Request:
    return Request(
        IN=np.array(values, np.int32), DELAY=np.array(delays, np.uint32), WAIT=np.array([0], np.uint32)
    )


def test_repeat(load_python: Load) -> None:
    model = load_python("repeat_int32")
    requests = [repeat_request([4, 5, 6], [0, 1, 0]), repeat_request([], []), repeat_request([1], [0, 0])]
    assert model.execute(requests) is None
    model.finalize()
    full, empty, uneven = requests
    assert [(r.outputs["OUT"].item(), r.outputs["IDX"].item()) for r in full.sent] == [(4, 0), (5, 1), (6, 2)]
    assert full.sent[0].outputs["OUT"].dtype == np.dtype(np.int32)
    assert full.sent[0].outputs["IDX"].dtype == np.dtype(np.uint32)
    assert empty.sent == []
    assert uneven.sent[0].error is not None
    assert uneven.sent[0].error.message == "expected IN and DELAY of the same length, got 1 and 2"
    assert all(request.final for request in requests)


def page(*lines: str, size: int = 40) -> Image.Image:
    """Lines of black text below each other on white, each at (20, 60 * its number + 20)."""
    image = Image.new("RGB", (640, 60 * len(lines) + 40), "white")
    draw = ImageDraw.Draw(image)
    for number, text in enumerate(lines):
        draw.text((20, 60 * number + 20), text, "black", ImageFont.load_default(size))
    return image


def read(load_python: Load, run_onnx: Run, image: Image.Image) -> dict[str, npt.NDArray[Any]]:
    """What the steps of `ocr_ensemble` make of a picture."""
    first = load_python("ocr_preprocess", max_bytes=1 << 24, max_pixels=1 << 24, max_side=960)
    (prepared,) = first.execute([Request(image=images(encoded(image))[0])])
    (probability,) = run_onnx("rapidocr_det/1", x=prepared.outputs["pixels"])
    cut = load_python("ocr_lines", max_lines=16, max_width=960)
    (lines,) = cut.execute([Request(picture=prepared.outputs["picture"], probability=probability)])
    (scores,) = run_onnx("rapidocr_rec/1", x=lines.outputs["lines"])
    (text,) = load_python("ocr_text").execute([Request(scores=scores, boxes=lines.outputs["boxes"])])
    return {**lines.outputs, **text.outputs}


def test_ocr_reads_a_page(load_python: Load, run_onnx: Run) -> None:
    texts = ["Nereid serves models", "Order 66-1977", "on Ray Serve, since 2026"]
    found = read(load_python, run_onnx, page(*texts))
    assert [text.decode() for text in found["text"]] == texts
    assert (found["confidence"] > 0.9).all()
    for number, (left, top, right, bottom) in enumerate(found["boxes"].tolist()):
        assert 0 <= left < 25 < 200 < right <= 640
        assert 60 * number + 5 < top < 60 * number + 35 < bottom < 60 * number + 85


def test_ocr_of_a_blank_page(load_python: Load, run_onnx: Run) -> None:
    found = read(load_python, run_onnx, page())
    assert (found["text"].shape, found["confidence"].shape, found["boxes"].shape) == ((0,), (0,), (0, 4))


def test_ocr_refuses_what_is_no_picture(load_python: Load) -> None:
    model = load_python("ocr_preprocess", max_bytes=100, max_pixels=1 << 24, max_side=960)
    refusals = {b"no picture": "expected a JPEG or PNG file", b"x" * 101: "101 bytes exceed the limit of 100"}
    for file, text in refusals.items():
        (response,) = model.execute([Request(image=images(file)[0])])
        assert response.error is not None
        assert text in response.error.message


def test_ocr_reads_rows_from_left_to_right(load_python: Load) -> None:
    module = load_python("ocr_lines", max_lines=16, max_width=960).execute.__globals__
    assert module["reading_order"]([(50, 3, 60, 11), (0, 0, 9, 10), (5, 30, 9, 40)]) == [
        (0, 0, 9, 10),
        (50, 3, 60, 11),
        (5, 30, 9, 40),
    ]


def faces_of(load_python: Load, run_onnx: Run, picture: npt.NDArray[np.uint8]) -> Any:
    """What `faces` makes of a picture: detections and landmarks, in pixels of it."""
    model = load_python("faces", max_bytes=1, max_pixels=1, score_threshold=0.5, iou_threshold=0.3)
    inside, place = letterbox(picture, (640, 640), fill=0)
    maps = run_onnx("centerface/1", pixels=normalise(inside, scale=1)[np.newaxis])
    found, landmarks = model.execute.__globals__["faces"](*(each[0] for each in maps), 0.5, 0.3)
    return found._replace(boxes=place.to_picture(found.boxes)), place.to_picture(landmarks)


def test_faces_are_where_they_were_put(load_python: Load, run_onnx: Run) -> None:
    with Image.open(DATA / "astronaut.jpg") as opened:
        face = opened.crop((140, 30, 310, 200))  # whose box in it is 40, 28, 131, 146
    image = Image.new("RGB", (500, 300), "gray")
    image.paste(face, (10, 20))
    image.paste(face.resize((85, 85)), (350, 150))
    found, landmarks = faces_of(load_python, run_onnx, np.array(image))
    order = found.boxes[:, 0].argsort()
    expected = np.array([[50, 48, 141, 166], [370, 164, 415.5, 223]])
    np.testing.assert_allclose(found.boxes[order], expected, atol=6)
    assert (found.scores > 0.7).all() and found.classes.tolist() == [0, 0]
    for (left, top, right, bottom), points in zip(found.boxes, landmarks, strict=True):
        assert ((points > (left, top)) & (points < (right, bottom))).all()
        left_eye, right_eye, nose, left_corner, right_corner = points
        assert left_eye[0] < nose[0] < right_eye[0] and left_corner[0] < right_corner[0]
        assert max(left_eye[1], right_eye[1]) < nose[1] < min(left_corner[1], right_corner[1])


def test_no_faces_are_empty_arrays(load_python: Load, run_onnx: Run) -> None:
    found, landmarks = faces_of(load_python, run_onnx, np.zeros((64, 48, 3), np.uint8))
    shapes = [found.boxes.shape, found.scores.shape, found.classes.shape, landmarks.shape]
    assert shapes == [(0, 4), (0,), (0,), (0, 5, 2)]
