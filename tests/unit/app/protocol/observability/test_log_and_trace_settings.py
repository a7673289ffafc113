"""The messages of the logging and trace extensions."""

import json
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import ErrorCode, InferError
from app.core.observability.log import LogConfig
from app.core.observability.trace_settings import TraceSetting
from app.protocol.observability import log_settings, trace_settings

NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
LOG_FILE = "log file location can not be updated through network protocol"
TRACE_FILE = "trace file location can not be updated through network protocol"


def log_request(**settings: Any) -> Any:
    request = pb.LogSettingsRequest()
    for key, (field, value) in settings.items():
        setattr(request.settings[key], field, value)
    return request


def trace_request(**settings: Any) -> Any:
    request = pb.TraceSettingRequest()
    for key, values in settings.items():
        request.settings[key].value.extend(values)
    return request


def test_log_response() -> None:
    config = LogConfig(log_verbose_level=3)
    assert json.loads(log_settings.encode_http(config)) == {
        "log_file": "", "log_info": True, "log_warning": True, "log_error": True,
        "log_verbose_level": 3, "log_format": "default",
    }  # fmt: skip
    reply = log_settings.encode_grpc(config).settings
    assert reply["log_file"].WhichOneof("parameter_choice") == "string_param"
    assert (reply["log_verbose_level"].uint32_param, reply["log_info"].bool_param) == (3, True)


def test_log_change() -> None:
    wanted = {"log_info": False, "log_verbose_level": 2, "log_format": "ISO8601"}
    assert log_settings.decode_http({**wanted, "log_file": None, "log_error": None}) == wanted
    request = log_request(
        log_info=("bool_param", False),
        log_verbose_level=("uint32_param", 2),
        log_format=("string_param", "ISO8601"),
    )
    assert log_settings.decode_grpc(request) == wanted


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        ({"log_file": "/tmp/x"}, ErrorCode.UNSUPPORTED, LOG_FILE),
        ({"log_info": 1}, ErrorCode.INTERNAL, NON_BOOLEAN),
        ({"log_format": "xml"}, ErrorCode.UNAVAILABLE, "invalid argument for --log_format, got: xml"),
        ({"log_verbose_level": -1}, ErrorCode.INTERNAL,
         "attempt to access JSON non-unsigned-integer as unsigned-integer"),
    ],
)  # fmt: skip
def test_log_refusals_over_http(document: object, code: ErrorCode, text: str) -> None:
    with pytest.raises(InferError) as raised:
        log_settings.decode_http(document)
    assert (raised.value.code, raised.value.message) == (code, text)


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({"log_file": ("string_param", "x")}, ErrorCode.UNSUPPORTED, LOG_FILE),
        ({"log_info": ("uint32_param", 1)}, ErrorCode.INVALID_ARG, "expect boolean for 'log_info'"),
        ({"log_verbose_level": ("bool_param", True)}, ErrorCode.INVALID_ARG,
         "expect int32 for 'log_verbose_level'"),
        ({"log_format": ("bool_param", True)}, ErrorCode.INVALID_ARG, "expect string for 'log_format'"),
        ({"log_format": ("string_param", "xml")}, ErrorCode.INVALID_ARG,
         "invalid argument for log_format, got: xml"),
    ],
)  # fmt: skip
def test_log_refusals_over_grpc(settings: Any, code: ErrorCode, text: str) -> None:
    with pytest.raises(InferError) as raised:
        log_settings.decode_grpc(log_request(**settings))
    assert (raised.value.code, raised.value.message) == (code, text)


def test_trace_response() -> None:
    values = {
        "trace_level": ["OFF"], "trace_rate": "1000", "trace_count": "-1", "log_frequency": "0",
        "trace_file": "", "trace_mode": "triton",
    }  # fmt: skip
    assert json.loads(trace_settings.encode_http(TraceSetting())) == values
    reply = trace_settings.encode_grpc(TraceSetting())
    assert {key: list(value.value) for key, value in reply.settings.items()} == {
        key: value if isinstance(value, list) else [value] for key, value in values.items()
    }
    telemetry = TraceSetting(("TIMESTAMPS",), mode="opentelemetry", options={"url": "u"})
    assert json.loads(trace_settings.encode_http(telemetry)) == {
        "trace_level": ["TIMESTAMPS"], "trace_rate": "1000", "trace_count": "-1",
        "trace_mode": "opentelemetry", "url": "u",
    }  # fmt: skip


def test_trace_change() -> None:
    document = {"trace_level": ["TENSORS", "TIMESTAMPS"], "trace_rate": "5", "trace_count": None}
    wanted = {"level": ("TIMESTAMPS", "TENSORS"), "rate": 5, "count": None}
    assert trace_settings.decode_http(document) == wanted
    request = trace_request(trace_level=["TENSORS", "TIMESTAMPS"], trace_rate=["5"], trace_count=[])
    assert trace_settings.decode_grpc(request) == wanted
    assert trace_settings.decode_http({"trace_level": ["OFF"]}) == {"level": ()}
    assert trace_settings.decode_http({"trace_level": []}) == {"level": None}


@pytest.mark.parametrize(
    ("key", "value", "http", "grpc"),
    [
        ("trace_file", "x", TRACE_FILE, TRACE_FILE),
        ("trace_rate", "x", "Unable to parse 'trace_rate', got: x", None),
        ("trace_count", "-2", "Unable to parse 'trace_count'. Expecting value >= -1, got:-2",
         "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        ("trace_rate", "4294967296",
         "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296", None),
    ],
)  # fmt: skip
def test_trace_refusals(key: str, value: object, http: Any, grpc: Any) -> None:
    with pytest.raises(InferError) as raised:
        trace_settings.decode_http({key: value})
    assert raised.value.message == http
    with pytest.raises(InferError) as raised:
        trace_settings.decode_grpc(trace_request(**{key: [value]}))
    assert raised.value.message == (grpc or http)


UNKNOWN = [
    (log_settings, {"log_inf": True}, "unknown log setting 'log_inf'; did you mean 'log_info'?"),
    (
        log_settings,
        {"mine": 1},
        "unknown log setting 'mine'; expected one of log_info, log_warning, log_error, log_verbose_level, "
        "log_format",
    ),
    (log_settings, [1], "settings are a JSON object of names and values"),
    (trace_settings, {"trace_rates": "1"}, "unknown trace setting 'trace_rates'; did you mean 'trace_rate'?"),
    (
        trace_settings,
        {"trace_level": ["TIMESTAMP"]},
        "unknown trace level 'TIMESTAMP'; did you mean 'TIMESTAMPS'?",
    ),
    (trace_settings, 1, "settings are a JSON object of names and values"),
]


@pytest.mark.parametrize(("module", "document", "text"), UNKNOWN)
def test_what_nothing_is_changed_by_is_refused(module: Any, document: Any, text: str) -> None:
    with pytest.raises(InferError) as raised:
        module.decode_http(document)
    assert (raised.value.code, raised.value.message) == (ErrorCode.INVALID_ARG, text)
    if isinstance(document, dict):
        (made,) = document.items()
        name, value = made
        message = (
            trace_request(**{name: value if isinstance(value, list) else [value]})
            if module is trace_settings
            else log_request(**{name: ("bool_param", True)})
        )
        with pytest.raises(InferError) as raised:
            module.decode_grpc(message)
        assert raised.value.message == text


def test_off_excludes_levels_and_grpc_allows_one_value() -> None:
    for decode, bad in (
        (trace_settings.decode_http, {"trace_level": ["OFF", "TENSORS"]}),
        (trace_settings.decode_grpc, trace_request(trace_level=["OFF", "TENSORS"])),
    ):
        with pytest.raises(InferError, match="Expect only one trace level 'OFF' is specified"):
            decode(bad)
    with pytest.raises(InferError, match="expect only 1 value for 'trace_rate'"):
        trace_settings.decode_grpc(trace_request(trace_rate=["1", "2"]))
