"""Writes the clip of the example, H.264: three rectangles that cross, and one of which leaves and returns.

python examples/video/make_clip.py
"""

from pathlib import Path
from typing import Any

import av
import numpy as np

TARGET = Path(__file__).parent / "models/cameras/media/rectangles.mp4"
HEIGHT, WIDTH, FRAMES = 360, 640, 120


def draw(index: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a frame, RGB."""
    image = np.full((HEIGHT, WIDTH, 3), 45, np.uint8)
    bounce = 230 - abs(index - 60) * 3
    for colour, left, top, width, height in (
        ((40, 70, 230), 40 + 4 * index, 60, 90, 80),
        ((30, 200, 30), 520 - 4 * index, 110, 80, 110),
        ((220, 30, 30), 280, bounce if not 50 <= index < 65 else HEIGHT, 100, 70),
    ):
        image[top : top + height, max(0, left) : max(0, left + width)] = colour
    return image


def main() -> None:
    """Write the clip."""
    TARGET.parent.mkdir(exist_ok=True)
    with av.open(str(TARGET), "w") as output:
        stream: Any = output.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for index in range(FRAMES):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(draw(index), format="rgb24")))
        output.mux(stream.encode(None))
    print(f"{FRAMES} frames in {TARGET}")


if __name__ == "__main__":
    main()
