"""Messages of the trace extension, over HTTP and gRPC."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tritonclient.grpc import service_pb2 as pb

from app.core.encoding import to_json
from app.core.errors import internal, invalid_arg, unsupported
from app.core.observability.trace_settings import LEVELS, OFF, TraceSetting
from app.protocol.http import strict_json
from app.protocol.observability.names import check_names, settings_of

_NUMBERS: Final[Mapping[str, tuple[str, int, int]]] = {
    "trace_rate": ("rate", 0, (1 << 32) - 1),
    "trace_count": ("count", -1, (1 << 31) - 1),
    "log_frequency": ("log_frequency", 0, (1 << 32) - 1),
}
"""Field of `TraceSetting` and bounds of each numeric setting."""


def encode_http(setting: TraceSetting) -> bytes:
    """Return the JSON response of `/v2/.../trace/setting`."""
    return to_json(_values(setting))


def decode_http(document: Any) -> dict[str, Any]:
    """Return the settings that a JSON document changes; null, or an empty level, clears a setting.

    Raises:
        InferError: UNSUPPORTED for a file, INVALID_ARG for a bad value and an unknown setting, INTERNAL for a
            wrong type.
    """
    given = settings_of(document)
    _check(given)
    change: dict[str, Any] = {}
    if "trace_level" in given:
        levels = given["trace_level"]
        if levels is not None and not isinstance(levels, list):
            raise internal("attempt to access JSON non-array as array")
        change["level"] = _level([strict_json.as_text(level) for level in levels or ()])
    for key, (name, low, high) in _NUMBERS.items():
        if key in given:
            value = given[key]
            text = None if value is None else strict_json.as_text(value)
            change[name] = None if text is None else _number(key, text, low, high, "got:")
    return change


def encode_grpc(setting: TraceSetting) -> pb.TraceSettingResponse:
    """Return the response of TraceSetting."""
    response = pb.TraceSettingResponse()
    for key, value in _values(setting).items():
        response.settings[key].value.extend([value] if isinstance(value, str) else value)
    return response


def decode_grpc(message: pb.TraceSettingRequest) -> dict[str, Any]:
    """Return the settings that a TraceSetting request changes; no value clears a setting.

    Raises:
        InferError: UNSUPPORTED for a file, INVALID_ARG for a bad value and an unknown setting.
    """
    settings = message.settings
    _check(settings)
    change: dict[str, Any] = {}
    if "trace_level" in settings:
        change["level"] = _level(settings["trace_level"].value)
    for key, (name, low, high) in _NUMBERS.items():
        if key in settings:
            values = settings[key].value
            if len(values) > 1:
                raise invalid_arg(f"expect only 1 value for '{key}'")
            change[name] = _number(key, values[0], low, high, "got: ") if values else None
    return change


def _values(setting: TraceSetting) -> dict[str, Any]:
    values: dict[str, Any] = {
        "trace_level": list(setting.level) or [OFF],
        "trace_rate": str(setting.rate),
        "trace_count": str(setting.count),
    }
    if setting.mode == "triton":
        values |= {"log_frequency": str(setting.log_frequency), "trace_file": setting.file}
    return {**values, "trace_mode": setting.mode, **setting.options}


def _check(given: Mapping[str, Any]) -> None:
    if "trace_file" in given:
        raise unsupported("trace file location can not be updated through network protocol")
    check_names("trace setting", given, ("trace_level", *_NUMBERS))


def _level(names: Sequence[str]) -> tuple[str, ...] | None:
    if OFF in names and len(names) > 1:
        raise invalid_arg("Expect only one trace level 'OFF' is specified")
    check_names("trace level", names, (OFF, *LEVELS))
    level = tuple(level for level in LEVELS if level in names)
    return level if level or OFF in names else None


def _number(key: str, text: str, low: int, high: int, got: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise invalid_arg(f"Unable to parse '{key}', got: {text}") from None
    if number < low and key == "trace_count":
        raise invalid_arg(f"Unable to parse '{key}'. Expecting value >= {low}, {got}{text}")
    if not low <= number <= high:
        raise invalid_arg(f"Unable to parse '{key}', value is out of range [ {low}, {high} ], got: {text}")
    return number
