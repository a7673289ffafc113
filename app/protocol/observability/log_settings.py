"""Messages of the logging extension, over HTTP and gRPC."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from tritonclient.grpc import service_pb2 as pb

from app.core.encoding import to_json
from app.core.errors import InferError, invalid_arg, unavailable, unsupported
from app.core.observability.log import LOG_FORMATS, LogConfig
from app.protocol.http import strict_json
from app.protocol.observability.names import check_names, settings_of

_FLAGS: Final = ("log_info", "log_warning", "log_error")
_SETTINGS: Final = (*_FLAGS, "log_verbose_level", "log_format")
_MAX_LEVEL: Final = (1 << 31) - 1
_FILE_TEXT: Final = "log file location can not be updated through network protocol"


def encode_http(config: LogConfig) -> bytes:
    """Return the JSON response of `/v2/logging`."""
    return to_json(config)


def decode_http(document: Any) -> dict[str, Any]:
    """Return the settings that a JSON document changes; null leaves a setting as it is.

    Raises:
        InferError: UNSUPPORTED for a file, UNAVAILABLE for an unknown format, INTERNAL for a wrong type,
            INVALID_ARG for an unknown setting.
    """
    given = {key: value for key, value in settings_of(document).items() if value is not None}
    if "log_file" in given:
        raise unsupported(_FILE_TEXT)
    check_names("log setting", given, _SETTINGS)
    change: dict[str, Any] = {key: strict_json.as_bool(given[key]) for key in _FLAGS if key in given}
    if "log_verbose_level" in given:
        change["log_verbose_level"] = min(strict_json.as_uint(given["log_verbose_level"]), _MAX_LEVEL)
    if "log_format" in given:
        form = strict_json.as_text(given["log_format"])
        change["log_format"] = _format(form, "--log_format", unavailable)
    return change


def encode_grpc(config: LogConfig) -> pb.LogSettingsResponse:
    """Return the response of LogSettings."""
    response = pb.LogSettingsResponse()
    for key, value in msgspec.structs.asdict(config).items():
        setattr(response.settings[key], _field(value), value)
    return response


def decode_grpc(message: pb.LogSettingsRequest) -> dict[str, Any]:
    """Return the settings that a LogSettings request changes.

    Raises:
        InferError: UNSUPPORTED for a file, INVALID_ARG for a wrong type, an unknown format or setting.
    """
    settings = message.settings
    if "log_file" in settings:
        raise unsupported(_FILE_TEXT)
    check_names("log setting", settings, _SETTINGS)
    change: dict[str, Any] = {}
    expected = {**dict.fromkeys(_FLAGS, "bool_param"), "log_verbose_level": "uint32_param"}
    for key, field in {**expected, "log_format": "string_param"}.items():
        if key in settings:
            if settings[key].WhichOneof("parameter_choice") != field:
                noun = {"bool_param": "boolean", "uint32_param": "int32", "string_param": "string"}[field]
                raise invalid_arg(f"expect {noun} for '{key}'")
            change[key] = getattr(settings[key], field)
    if "log_verbose_level" in change:
        change["log_verbose_level"] = min(change["log_verbose_level"], _MAX_LEVEL)
    if "log_format" in change:
        _format(change["log_format"], "log_format", invalid_arg)
    return change


def _format(form: str, name: str, error: Callable[[str], InferError]) -> str:
    if form not in LOG_FORMATS:
        raise error(f"invalid argument for {name}, got: {form}")
    return form


def _field(value: object) -> str:
    return {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
