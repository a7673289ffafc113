"""The settings of a stream, from a model's parameters and a request."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from app.core.errors import invalid_arg
from app.core.tensors import InferRequest
from backends.base import Model
from backends.parameters import positive
from backends.rtsp.policy import SCHEMES, AllowList

Mode = Literal["live", "complete"]

_TRANSPORTS: Final = ("tcp", "udp")
_MODES: Final = ("auto", "live", "complete")
_MAX_FPS: Final = 1000.0


class Settings(NamedTuple):
    """The parameters of a model; times in seconds.

    Attributes:
        allowed: what clients may have opened.
        transports: of RTSP; the first is the default.
        mode: "auto" is live for RTSP and complete for the rest.
        max_streams: streams at once.
        max_pixels: of a frame, decoded or asked for.
        open_timeout, read_timeout: limits of opening a source, and of waiting for its next data.
        reconnects: attempts to open a live source again, each after twice the pause of the one before.
        pause, max_pause: the first pause and the longest.
        in_flight: frames of a stream that were sent and whose memory is still in use.
        threads: of a decoder.
    """

    allowed: AllowList
    transports: tuple[str, ...]
    mode: str
    max_streams: int
    max_pixels: int
    open_timeout: float
    read_timeout: float
    reconnects: int
    pause: float
    max_pause: float
    in_flight: int
    threads: int


def read_settings(model: Model) -> Settings:
    """Read the parameters of a model.

    Raises:
        InferError: INVALID_ARG for a value that is none.
    """
    directory = model.parameter("media_directory")
    allowed = AllowList(
        _listed(model, "allowed_schemes", SCHEMES),
        _listed(model, "allowed_hosts", ()),
        model.directory / Path(directory) if directory else None,
    )
    return Settings(
        allowed,
        tuple(_one_of("allowed_transports", each, _TRANSPORTS) for each in _transports(model)),
        _one_of("mode", model.parameter("mode", "auto"), _MODES),
        positive(model, "max_streams", 16),
        positive(model, "max_pixels", 4096 * 2160),
        _seconds(model, "open_timeout_s", 10.0),
        _seconds(model, "read_timeout_s", 10.0),
        positive(model, "reconnect_attempts", 5),
        _seconds(model, "reconnect_pause_s", 0.5),
        _seconds(model, "reconnect_max_pause_s", 30.0),
        positive(model, "frames_in_flight", 16),
        positive(model, "decode_threads", 1),
    )


class StreamRequest(NamedTuple):
    """What a request asks for.

    Attributes:
        url: the source.
        frames: how many to send; 0 for all.
        fps: frames a second of the video at most; 0 for all.
        size: height and width of frames; None for their own.
        transport: of RTSP.
        mode: whether frames that are not read in time are dropped.
    """

    url: str
    frames: int
    fps: float
    size: tuple[int, int] | None
    transport: str
    mode: Mode


def read_request(settings: Settings, infer: InferRequest) -> StreamRequest:
    """Read and check the inputs, and the request parameter `mode`.

    Raises:
        InferError: INVALID_ARG for what is missing, malformed or not allowed.
    """
    arrays = {tensor.name: tensor.array().ravel().tolist() for tensor in infer.inputs}
    url = _text(arrays, "URL")
    if not url:
        raise invalid_arg("input 'URL' is missing")
    parts = settings.allowed.split(url)
    frames, fps = int(_first(arrays, "FRAMES", 0)), float(_first(arrays, "FPS", 0.0))
    if frames < 0:
        raise invalid_arg(f"input 'FRAMES': expected a number of frames, or 0 for all, got {frames}")
    if not 0 <= fps <= _MAX_FPS:
        raise invalid_arg(
            f"input 'FPS': expected up to {_MAX_FPS:g} frames per second, or 0 for all, got {fps}"
        )
    transport = _text(arrays, "TRANSPORT").lower() or settings.transports[0]
    if transport not in settings.transports:
        raise invalid_arg(
            f"input 'TRANSPORT': '{transport}' is not allowed; allowed_transports of the model:"
            f" {', '.join(settings.transports)}"
        )
    mode = _one_of("mode", str(infer.parameters.get("mode", settings.mode)), _MODES)
    if mode == "auto":
        mode = "live" if parts.scheme.startswith("rtsp") else "complete"
    return StreamRequest(url, frames, fps, _size(settings, arrays), transport, cast(Mode, mode))


def _size(settings: Settings, arrays: Mapping[str, list[Any]]) -> tuple[int, int] | None:
    if not arrays.get("SIZE"):
        return None
    height, width = (int(length) for length in arrays["SIZE"])
    if height < 1 or width < 1 or height * width > settings.max_pixels:
        raise invalid_arg(
            f"input 'SIZE': expected height and width of at most {settings.max_pixels} pixels (the model's"
            f" max_pixels), got [{height},{width}]"
        )
    return height, width


def _first(arrays: Mapping[str, list[Any]], name: str, default: Any) -> Any:
    values = arrays.get(name)
    return values[0] if values else default


def _text(arrays: Mapping[str, list[Any]], name: str) -> str:
    value: bytes = _first(arrays, name, b"")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid_arg(f"input '{name}' is not UTF-8") from None


def _transports(model: Model) -> list[str]:
    return _listed(model, "allowed_transports", ("tcp",))


def _listed(model: Model, key: str, default: tuple[str, ...]) -> list[str]:
    text = model.parameter(key)
    return [item.strip().lower() for item in text.split(",") if item.strip()] if text else list(default)


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise invalid_arg(f"parameter '{key}': '{value}' is none of {', '.join(allowed)}")
    return value


def _seconds(model: Model, key: str, default: float) -> float:
    text = model.parameter(key)
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise invalid_arg(f"parameter '{key}' of model '{model.name}': '{text}' is no number of seconds")
    return value
