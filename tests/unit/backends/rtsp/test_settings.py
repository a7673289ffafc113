"""Parameters of a model as docs/models/video.md has them, and their defaults."""

from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InferError
from backends.base import Model
from backends.rtsp.settings import Settings, read_settings
from tests.unit.backend_harness import config


def settings(**parameters: str) -> Settings:
    given = config('name: "m" backend: "rtsp"')
    for name, value in parameters.items():
        given.parameters[name].string_value = value
    return read_settings(Model(given, 1, Path("nowhere")))


@pytest.mark.parametrize(
    ("name", "value", "attribute", "default", "expected"),
    [
        ("allowed_transports", "udp, TCP", "transports", ("tcp",), ("udp", "tcp")),
        ("mode", "live", "mode", "auto", "live"),
        ("max_streams", "3", "max_streams", 16, 3),
        ("max_pixels", "1000", "max_pixels", 8847360, 1000),
        ("open_timeout_s", "1.5", "open_timeout", 10, 1.5),
        ("read_timeout_s", "2.5", "read_timeout", 10, 2.5),
        ("reconnect_attempts", "7", "reconnects", 5, 7),
        ("reconnect_pause_s", "0.1", "pause", 0.5, 0.1),
        ("reconnect_max_pause_s", "60", "max_pause", 30, 60),
        ("frames_in_flight", "4", "in_flight", 16, 4),
        ("decode_threads", "2", "threads", 1, 2),
    ],
)
def test_parameter_and_its_default(
    name: str, value: str, attribute: str, default: Any, expected: Any
) -> None:
    assert getattr(settings(), attribute) == default
    assert getattr(settings(**{name: value}), attribute) == expected


@pytest.mark.parametrize("name", ["open_timeout_s", "reconnect_max_pause_s"])
@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "1e9"])
def test_seconds_are_numbers(name: str, value: str) -> None:
    with pytest.raises(InferError) as caught:
        settings(**{name: value})
    assert caught.value.message == f"parameter '{name}' of model 'm': '{value}' is no number of seconds"
