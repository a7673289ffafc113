"""Asks the model `watch` for a stream, draws its tracks, and writes a film and a picture of them.

python examples/video/watch.py rectangles.mp4 --film=tracks.mp4 --picture=tracks.png
"""

import argparse
import queue
from typing import Any

import av
import numpy as np
import tritonclient.grpc as triton
from PIL import Image, ImageDraw, ImageFont

COLOURS = ("orange", "cyan", "magenta", "yellow", "white", "lime")


def frames(address: str, url: str) -> Any:
    """Yield the outputs of each frame by name.

    Raises:
        InferenceServerException: the stream ended with an error.
    """
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = triton.InferenceServerClient(address)
    client.start_stream(lambda result, error: answers.put((result, error)))
    source = triton.InferInput("URL", [1], "BYTES")
    source.set_data_from_numpy(np.array([url.encode()], object))
    client.async_stream_infer("watch", [source], enable_empty_final_response=True)
    try:
        while True:
            result, error = answers.get()
            if error is not None:
                raise error
            response = result.get_response()
            if response.parameters["triton_final_response"].bool_param:
                return
            yield {output.name: result.as_numpy(output.name) for output in response.outputs}
    finally:
        client.close()


def draw(outputs: dict[str, Any]) -> Image.Image:
    """Draw the boxes and ids of a frame into it."""
    image = Image.fromarray(outputs["FRAME"])
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(20)
    for number, box, score in zip(
        *(outputs[f"TRACK_{name}"] for name in ("IDS", "BOXES", "SCORES")), strict=True
    ):
        colour = COLOURS[number % len(COLOURS)]
        pen.rectangle(box.tolist(), outline=colour, width=3)
        pen.text((box[0] + 5, box[1] + 3), f"{number}  {score:.2f}", colour, font)
    return image


def main() -> None:
    """Write the film, and its middle as a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--server", default="localhost:8001")
    parser.add_argument("--film", default="tracks.mp4")
    parser.add_argument("--picture", default="tracks.png")
    parser.add_argument("--at", type=int, default=75, help="index of the frame to keep as the picture")
    options = parser.parse_args()
    ids: set[int] = set()
    count = 0
    with av.open(options.film, "w") as film:
        stream: Any = film.add_stream("libx264", rate=30)
        for outputs in frames(options.server, options.url):
            image = draw(outputs)
            if not count:
                stream.width, stream.height, stream.pix_fmt = image.width, image.height, "yuv420p"
            film.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(image), format="rgb24")))
            ids.update(outputs["TRACK_IDS"].tolist())
            count += 1
            if outputs["INDEX"][0] == options.at:
                image.save(options.picture)
        if count:
            film.mux(stream.encode(None))
    print(f"{count} frames, tracks {sorted(ids)}")


if __name__ == "__main__":
    main()
