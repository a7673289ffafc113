"""Request parameters over gRPC, and the model repository extension's."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import ErrorCode, InferError
from app.protocol.grpc.parameters import decode_parameters, wants_empty_final
from app.protocol.grpc.repository import decode_load, decode_unload


def parameters(**entries: Any) -> Any:
    """Build the map from `key=(kind, value)`."""
    message = pb.ModelInferRequest()
    for key, (kind, value) in entries.items():
        setattr(message.parameters[key], kind, value)
    return message.parameters


def test_reserved_parameters_become_fields() -> None:
    entries = parameters(
        sequence_id=("int64_param", -1),
        sequence_start=("bool_param", True),
        sequence_end=("bool_param", False),
        priority=("uint64_param", 2**63),
        timeout=("int64_param", 1000),
        triton_enable_empty_final_response=("bool_param", True),
        a=("int64_param", -2),
        b=("bool_param", False),
        c=("string_param", ""),
        d=("double_param", 0.5),
    )
    fields, custom = decode_parameters(entries)
    assert fields == {
        "sequence_id": 2**64 - 1,
        "sequence_start": True,
        "sequence_end": False,
        "priority": 2**63,
        "timeout_us": 1000,
    }
    assert custom == {"a": -2, "b": False, "c": "", "d": 0.5}
    assert wants_empty_final(entries)


def test_string_correlation_id() -> None:
    assert decode_parameters(parameters(sequence_id=("string_param", "s" * 128)))[0] == {
        "sequence_id": "s" * 128
    }


@pytest.mark.parametrize("value", [("bool_param", False), None])
def test_empty_final_response_is_off_by_default(value: object) -> None:
    entries = parameters(**({"triton_enable_empty_final_response": value} if value else {}))
    assert not wants_empty_final(entries)


RESERVED_TEXT = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
    "with 'triton_' are allowed: triton_enable_empty_final_response"
)


@pytest.mark.parametrize(
    ("key", "kind", "value", "text"),
    [
        ("sequence_id", "uint64_param", 1, "'sequence_id' parameter, expected int64_param or string_param."),
        ("sequence_start", "int64_param", 1, "'sequence_start' parameter, expected bool_param."),
        ("sequence_end", "string_param", "x", "'sequence_end' parameter, expected bool_param."),
        ("priority", "string_param", "1", "'priority' parameter, expected int64_param or uint64_param."),
        ("timeout", "uint64_param", 1, "'timeout' parameter, expected int64_param."),
        (
            "triton_enable_empty_final_response",
            "int64_param",
            1,
            "'triton_enable_empty_final_response' parameter, expected bool_param.",
        ),
        ("mine", "uint64_param", 1, "'mine' parameter, expected int64_param, bool_param, or string_param."),
    ],
)
def test_wrong_types_are_refused(key: str, kind: str, value: object, text: str) -> None:
    with pytest.raises(InferError) as caught:
        decode_parameters(parameters(**{key: (kind, value)}))
    assert (caught.value.code, caught.value.message) == (
        ErrorCode.INVALID_ARG,
        f"invalid value type for {text}",
    )


@pytest.mark.parametrize(
    ("key", "kind", "value", "code", "text"),
    [
        ("triton_x", "bool_param", True, ErrorCode.INVALID_ARG, RESERVED_TEXT),
        (
            "priority",
            "int64_param",
            -1,
            ErrorCode.INVALID_ARG,
            "invalid value for 'priority', expected value >= 0.",
        ),
        (
            "sequence_id",
            "string_param",
            "s" * 129,
            ErrorCode.UNSUPPORTED,
            "string correlation ID cannot be longer than 128 characters",
        ),
    ],
)
def test_wrong_values_are_refused(key: str, kind: str, value: object, code: ErrorCode, text: str) -> None:
    with pytest.raises(InferError) as caught:
        decode_parameters(parameters(**{key: (kind, value)}))
    assert (caught.value.code, caught.value.message) == (code, text)


def load_message(**entries: Any) -> Any:
    message = pb.RepositoryModelLoadRequest(model_name="m")
    for key, (kind, value) in entries.items():
        setattr(message.parameters[key], kind, value)
    return message


def test_load_override() -> None:
    message = load_message(**{"config": ("string_param", "{}"), "file:1/model.onnx": ("bytes_param", b"\0")})
    assert decode_load(message) == ("{}", {"1/model.onnx": b"\0"})
    assert decode_load(load_message()) == (None, {})


@pytest.mark.parametrize(
    ("key", "kind", "value", "text"),
    [
        ("x", "string_param", "", "unrecognized load parameter 'x'."),
        (
            "config",
            "bytes_param",
            b"",
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "file:1/m",
            "string_param",
            "",
            "invalid value type for load parameter 'file:1/m', expected bytes_param.",
        ),
    ],
)
def test_load_refusals(key: str, kind: str, value: object, text: str) -> None:
    with pytest.raises(InferError) as caught:
        decode_load(load_message(**{key: (kind, value)}))
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, text)


def test_unload() -> None:
    message = pb.RepositoryModelUnloadRequest(model_name="m")
    assert decode_unload(message) is False
    message.parameters["unload_dependents"].bool_param = True
    assert decode_unload(message) is True
    message.parameters["unload_dependents"].int64_param = 1
    with pytest.raises(InferError, match="'unload_dependents' parameter, expected bool_param"):
        decode_unload(message)


@pytest.mark.parametrize("decode", [decode_load, decode_unload])
def test_repository_name_is_refused(decode: Any) -> None:
    message = pb.RepositoryModelLoadRequest if decode is decode_load else pb.RepositoryModelUnloadRequest
    with pytest.raises(InferError) as caught:
        decode(message(repository_name="r", model_name="m"))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert caught.value.message == "'repository_name' specification is not supported"
