"""Tapes of the two large example models: crops of photographs that packages ship, lines of text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont

from nereid.engine.engine import Engine
from nereid_client.vision import normalise

REPOSITORY: Final = Path(__file__).parents[2] / "model_repository"
CLASSIFIER: Final = "efficientnet_lite0_onnx"
READER: Final = "rapidocr_rec"
_LEAST: Final = 200
"""Pixels of the shorter side of a picture of which crops are made."""
_IN_FLIGHT: Final = 4
_WIDTH: Final = 320

Inputs = Mapping[str, npt.NDArray[np.float32]]


def photographs() -> list[Image.Image]:
    """Return the pictures of installed packages, in colour.

    Raises:
        SystemExit: scikit-learn or scikit-image is not installed.
    """
    found = []
    for package, place in (("sklearn", "datasets/images"), ("skimage", "data")):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise SystemExit(f"{package} is not installed: pip install scikit-learn scikit-image")
        for path in sorted(Path(spec.origin).parent.joinpath(place).iterdir()):
            if path.suffix in (".jpg", ".png"):
                picture = Image.open(path)
                if min(picture.size) >= _LEAST and picture.mode in ("RGB", "RGBA"):
                    found.append(picture.convert("RGB"))
    return found


def crops(number: int, seed: int = 0) -> Iterator[Inputs]:
    """Yield inputs of the classifier: a part of a photograph, turned a little, brighter or darker."""
    rng, pictures = np.random.default_rng(seed), photographs()
    for _ in range(number):
        picture = pictures[rng.integers(len(pictures))]
        side = int(min(picture.size) * rng.uniform(0.5, 1.0))
        left, top = (int(rng.integers(0, size - side + 1)) for size in picture.size)
        cut = picture.crop((left, top, left + side, top + side)).rotate(float(rng.uniform(-8, 8)))
        cut = ImageEnhance.Brightness(cut).enhance(float(rng.uniform(0.8, 1.2)))
        if rng.random() < 0.5:
            cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(cut.resize((224, 224), Image.Resampling.BICUBIC))
        yield {"input": normalise(pixels, mean=127, scale=128)[np.newaxis]}


def lines(number: int, seed: int = 0) -> Iterator[Inputs]:
    """Yield inputs of the reader: words in several sizes, on grounds that are not quite even."""
    rng = np.random.default_rng(seed)
    words = [word for word in (REPOSITORY / "language" / "corpus.txt").read_text().split() if word.isascii()]
    for _ in range(number):
        text = " ".join(words[each] for each in rng.integers(0, len(words), rng.integers(1, 4)))
        font = ImageFont.load_default(float(rng.integers(22, 40)))
        width = min(max(int(font.getlength(text)) + int(rng.integers(8, 30)), 32), _WIDTH)
        ground, ink = int(rng.integers(170, 256)), int(rng.integers(0, 90))
        picture = Image.new("RGB", (width, 48), (ground, ground, int(ground * 0.95)))
        ImageDraw.Draw(picture).text((5, int(rng.integers(-2, 8))), text, (ink, ink, ink), font)
        picture = picture.rotate(float(rng.uniform(-1.5, 1.5)), fillcolor=(ground, ground, ground))
        picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.0, 1.0))))
        pixels = np.asarray(picture).astype(np.float32) + rng.normal(0, 6, (48, width, 3))
        scaled = normalise(np.clip(pixels, 0, 255).astype(np.uint8), mean=127.5, scale=127.5)
        line = np.zeros((1, 3, 48, _WIDTH), np.float32)  # as PaddleOCR and RapidOCR fill lines up
        line[0, :, :, : scaled.shape[2]] = scaled[:, :, :_WIDTH]
        yield {"x": line}


def repository(directory: Path, model: str) -> Path:
    """Copy an example model with its first version, and what of it is recorded; return the repository."""
    target = directory / "models"
    target.mkdir(parents=True, exist_ok=True)
    if not (target / model).exists():
        shutil.copytree(REPOSITORY / model, target / model, ignore=shutil.ignore_patterns("2"))
        # Scores of 18,710 characters a step: 3 MB for a line.
        (target / model / "tape.yaml").write_text("rate: 1\nfields: {fetch_name_0: size}\n")
    return target


def record(models: Path, tape: Path, model: str, inputs: Iterator[Inputs]) -> None:
    """Ask a model for all inputs, and record that; returns when the tape is written."""
    flags: dict[str, Any] = {"model_repository": [str(models)], "model_control_mode": "explicit"}
    flags |= {"load_model": [model], "tape": str(tape), "tape_rate_limit": str(1 << 40)}
    with Engine.open(**flags) as engine:
        waiting = []
        for each in inputs:
            waiting.append(engine.submit(model, each))
            if len(waiting) >= _IN_FLIGHT:
                waiting.pop(0).result()
        for left in waiting:
            left.result()
