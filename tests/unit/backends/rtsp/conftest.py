"""A model of the backend whose media directory holds a clip, and packets for the RTSP server."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from backends.base import Model
from backends.rtsp.backend import RtspBackend
from tests.unit.backend_harness import Call, Served, config, infer
from tests.video import rtp_packets, write_clip
from tests.waiting import block_until

FRAMES = 30

Serve = Callable[..., "Cameras"]


class Cameras:
    """A loaded model."""

    def __init__(self, directory: Path, parameters: Mapping[str, str], text: str = "") -> None:
        given = config(f'name: "cameras" backend: "rtsp" {text}')
        for name, value in parameters.items():
            given.parameters[name].string_value = value
        model = Model(given, 1, directory)
        model.config = RtspBackend.auto_complete(model)
        self.served = Served(RtspBackend, model)

    def start(self, url: str, outputs: tuple[str, ...] = (), mode: str = "", **inputs: Any) -> Call:
        """Send a request."""
        arrays: dict[str, Any] = {"URL": np.array([url.encode()], object)}
        types = {"FRAMES": np.int32, "FPS": np.float32, "SIZE": np.int32, "TRANSPORT": object}
        for name, value in inputs.items():
            arrays[name] = np.atleast_1d(np.array(value, types[name]))
        (call,) = self.served(infer(arrays, outputs, parameters={"mode": mode} if mode else {}))
        return call

    def streams(self) -> int:
        """Streams open now."""
        return len(self.served.model.state.streams)

    def metric(self, name: str) -> float:
        """The only sample of a metric of the backend."""
        (samples,) = [family[3] for family in self.served.backend.metrics() if family[0] == name]
        return float(samples[0][1])


PATIENT_S: Final = "600"
"""A timeout of a stream that no test waits for: longer than `Call.wait` does."""


def values(call: Call, name: str) -> list[Any]:
    """An output of all responses but the final one."""
    *responses, last = call.wait()
    assert last.failure is None, last.failure
    found = [{tensor.name: tensor.array() for tensor in response.outputs} for response in responses]
    return [each[name] if name == "FRAME" else int(each[name][0]) for each in found]


def failure(call: Call) -> str:
    """The text of the error with which a stream ended."""
    last = call.wait()[-1]
    assert last.failure is not None
    return last.failure.message


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory with clips in its media directory."""
    directory = tmp_path_factory.mktemp("cameras")
    (directory / "media").mkdir()
    for name in ("clip.mp4", "clip.mkv", "clip.avi", "clip.ts", "clip.h264"):
        write_clip(directory / "media" / name, FRAMES)
    (directory / "secret.mp4").write_bytes((directory / "media" / "clip.mp4").read_bytes())
    return directory


def stream_threads() -> list[str]:
    """Threads of the backend, by their names: other tests' servers have threads in this process too."""
    return [each.name for each in threading.enumerate() if each.name.startswith(("cameras ", "rtsp "))]


@pytest.fixture
def serve(media: Path) -> Iterator[Serve]:
    """Loads models, and sees that nothing of them stays."""
    loaded: list[Cameras] = []

    def load(text: str = "", **parameters: str) -> Cameras:
        usual = {"media_directory": "media", "allowed_hosts": "127.0.0.1:*", "frames_in_flight": "1000"}
        cameras = Cameras(media, usual | parameters, text)
        loaded.append(cameras)
        return cameras

    yield load
    for cameras in loaded:
        cameras.served.close()
    try:
        block_until(lambda: not stream_threads(), timeout=5)
    except AssertionError:
        pytest.fail(f"threads of a stream are left: {stream_threads()}")


@pytest.fixture(scope="session")
def packets() -> list[bytes]:
    return rtp_packets(FRAMES)
