"""Draws the faces that the example model `faces` finds into a picture.

python examples/faces.py tests/data/astronaut.jpg --url=localhost:8000 --drawn=faces.png
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.http as triton
from PIL import Image, ImageDraw, ImageFont, ImageOps

OUTPUTS = ("boxes", "scores", "classes", "landmarks")
LABELS = ("face",)

Array = npt.NDArray[Any]


def detect(client: triton.InferenceServerClient, picture: bytes) -> dict[str, Array]:
    """Return boxes [n, 4], scores [n], classes [n] and landmarks [n, 5, 2] of the faces in a file."""
    image = triton.InferInput("image", [1], "BYTES")
    image.set_data_from_numpy(np.array([picture], dtype=object))
    answer = client.infer("faces", [image])
    return {name: answer.as_numpy(name) for name in OUTPUTS}


def draw(image: Image.Image, found: dict[str, Array]) -> None:
    """Draw boxes, what they are, and landmarks into a picture."""
    pen = ImageDraw.Draw(image)
    width = max(2, max(image.size) // 250)
    font = ImageFont.load_default(max(12, max(image.size) // 32))
    for box, score, number, points in zip(*(found[name].tolist() for name in OUTPUTS), strict=True):
        pen.rectangle(box, outline="lime", width=width)
        text = f"{LABELS[number]} {score:.2f}"
        pen.text((box[0], box[1] - width), text, "lime", font, "lb", stroke_width=1, stroke_fill="black")
        for x, y in points:
            pen.ellipse((x - width, y - width, x + width, y + width), "red")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("--drawn", type=Path, default=Path("faces.png"), help="file to write")
    arguments = parser.parse_args()
    file = arguments.picture.read_bytes()
    found = detect(triton.InferenceServerClient(arguments.url), file)
    with Image.open(arguments.picture) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")  # upright, as the boxes are
    draw(image, found)
    image.save(arguments.drawn)
    for box, score in zip(found["boxes"].round().astype(int).tolist(), found["scores"].tolist(), strict=True):
        print(f"{score:.2f} {box}")


if __name__ == "__main__":
    main()
