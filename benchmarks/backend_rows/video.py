"""The frames of a file by the backend rtsp, beside PyAV alone that decodes and converts; a thread each."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.buffers import set_allocator
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.memory.shared_pool import allocate
from backends.base import Instance, Model, Request
from backends.rtsp.backend import RtspBackend
from benchmarks.backends import Call, Row

_FRAMES: Final = 100


def rows() -> Iterable[Row]:
    """Return a row for each size."""
    for width, height in ((640, 360), (1920, 1080)):
        name = f"{_FRAMES} frames of {width}x{height}, H.264 to RGB"
        yield Row(name, partial(_both, width=width, height=height))


def _both(folder: Path, width: int, height: int) -> tuple[Call, Call]:
    clip = folder / "clip.mp4"
    _write(clip, width, height)
    set_allocator(allocate)  # as in a replica
    return _stream(clip), partial(_decode, clip)


def _write(clip: Path, width: int, height: int) -> None:
    """Write a clip of a picture of small squares that moves by two pixels a frame."""
    squares = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    picture = np.kron(squares, np.ones((8, 8, 1), np.uint8))
    with av.open(str(clip), "w") as output:
        stream: Any = output.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"preset": "veryfast"}
        for index in range(_FRAMES):
            frame = av.VideoFrame.from_ndarray(np.roll(picture, 2 * index, axis=1), format="rgb24")
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def _stream(clip: Path) -> Call:
    """Return a request for all frames of a clip, whose responses are dropped."""
    config = text_format.Parse('name: "m" backend: "rtsp"', mc.ModelConfig())
    config.parameters["media_directory"].string_value = str(clip.parent)
    model = Model(config, 1, clip.parent)
    model.config = RtspBackend.auto_complete(model)
    backend, instance = RtspBackend(), Instance(model, "m_0_0")
    backend.model_initialize(model)
    infer = InferRequest("m", "", (Tensor.from_array("URL", np.array([clip.name.encode()], object)),))

    def call() -> None:
        ended = threading.Event()
        count = 0

        def receive(response: InferResponse) -> None:
            nonlocal count
            count += not response.final
            if response.final:
                ended.set()

        backend.instance_execute(instance, [Request(infer, receive, lambda: False)])
        ended.wait()
        assert count == _FRAMES, count

    return call


def _decode(clip: Path) -> None:
    reformatter = VideoReformatter()
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for frame in container.decode(stream):
            reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
