"""What only a bare gRPC message can say: parameter types, tensor sources, and bytes that lie."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.contract.conftest import Addresses
from tests.contract.drivers import GrpcDriver
from tests.contract.samples import check_simple

ANONYMOUS = "[request id: <id_unknown>] "
ROW = bytes(64)
INVALID = "INVALID_ARGUMENT"
RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
    "with 'triton_' are allowed: triton_enable_empty_final_response"
)


def message(raw: bool = True) -> pb.ModelInferRequest:
    built = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        built.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        if raw:
            built.raw_input_contents.append(ROW)
    return built


def with_parameter(key: str, kind: str, value: object) -> pb.ModelInferRequest:
    built = message()
    setattr(built.parameters[key], kind, value)
    return built


def with_class_count(kind: str, value: object) -> pb.ModelInferRequest:
    built = message()
    setattr(built.outputs.add(name="OUTPUT0").parameters["classification"], kind, value)
    return built


def with_raw(*contents: bytes) -> pb.ModelInferRequest:
    built = message(raw=False)
    built.raw_input_contents.extend(contents)
    return built


def with_contents(raw: bool, **contents: list[Any]) -> pb.ModelInferRequest:
    built = message(raw)
    built.inputs[0].contents.CopyFrom(pb.InferTensorContents(**contents))
    return built


def with_strings(data: bytes, count: int) -> pb.ModelInferRequest:
    built = pb.ModelInferRequest(model_name="simple_identity", raw_input_contents=[data])
    built.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, count])
    return built


def with_region(**parameters: object) -> pb.ModelInferRequest:
    built = message(raw=False)
    built.raw_input_contents.append(bytes(64))  # of the other input
    for key, value in parameters.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(built.inputs[0].parameters[f"shared_memory_{key}"], kind, value)
    return built


STRINGS = "for inference input 'INPUT0' for model 'simple_identity'"
REFUSED = {
    "sequence_id of the wrong type": (
        with_parameter("sequence_id", "uint64_param", 1),
        INVALID,
        "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
    ),
    "sequence_start of the wrong type": (
        with_parameter("sequence_start", "int64_param", 1),
        INVALID,
        "invalid value type for 'sequence_start' parameter, expected bool_param.",
    ),
    "sequence_end of the wrong type": (
        with_parameter("sequence_end", "string_param", "true"),
        INVALID,
        "invalid value type for 'sequence_end' parameter, expected bool_param.",
    ),
    "priority of the wrong type": (
        with_parameter("priority", "string_param", "1"),
        INVALID,
        "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
    ),
    "timeout of the wrong type": (
        with_parameter("timeout", "uint64_param", 1),
        INVALID,
        "invalid value type for 'timeout' parameter, expected int64_param.",
    ),
    "custom parameter of the wrong type": (
        with_parameter("mine", "uint64_param", 1),
        INVALID,
        "invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param.",
    ),
    "reserved parameter": (with_parameter("triton_x", "int64_param", 1), INVALID, RESERVED),
    "empty final response of the wrong type": (
        with_parameter("triton_enable_empty_final_response", "int64_param", 1),
        INVALID,
        "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
    ),
    "correlation id too long": (
        with_parameter("sequence_id", "string_param", "s" * 129),
        "UNIMPLEMENTED",
        "string correlation ID cannot be longer than 128 characters",
    ),
    "class count of the wrong type": (
        with_class_count("string_param", "1"),
        INVALID,
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    "class count of zero": (
        with_class_count("int64_param", 0),
        INVALID,
        "invalid value for 'classification' parameter, expected >= 0",
    ),
    "no data": (
        with_raw(),
        INVALID,
        "unable to find data for input tensor 'INPUT0' for model 'simple' in request.",
    ),
    "data for one input of two": (
        with_raw(ROW),
        INVALID,
        "unable to find data for input tensor 'INPUT1' for model 'simple' in request.",
    ),
    "typed contents beside raw ones": (
        with_contents(True, int_contents=[1] * 16),
        INVALID,
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'simple'",
    ),
    "typed contents of another type": (
        with_contents(False, fp32_contents=[1] * 16),
        INVALID,
        "unexpected explicit tensor data for input tensor 'INPUT0' for model 'simple' of type 'FP32', "
        "expected datatype 'INT32'",
    ),
    "unknown shared memory": (
        with_region(region="r", byte_size=64),
        "NOT_FOUND",
        "Unable to find shared memory region: 'r'",
    ),
    "shared memory without a size": (
        with_region(region="r"),
        INVALID,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
        "'INPUT0'",
    ),
    "string length cut short": (
        with_strings(b"\1\0\0\0a\1\0", 2),
        INVALID,
        f"{ANONYMOUS}incomplete string length indicator {STRINGS}, expecting 4 bytes but only 2 bytes "
        "available. Please make sure the string length indicator is in one buffer.",
    ),
    "string cut short": (
        with_strings(b"\4\0\0\0abc", 1),
        INVALID,
        f"{ANONYMOUS}incomplete string data {STRINGS}, expecting string of length 4 but only 3 "
        "bytes available",
    ),
    "string that claims gigabytes": (
        with_strings(b"\xff\xff\xff\xffabc", 1),
        INVALID,
        f"{ANONYMOUS}incomplete string data {STRINGS}, expecting string of length 4294967295 but only 3 "
        "bytes available",
    ),
}


@pytest.mark.parametrize(("request_message", "status", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_message(
    grpc_stub: service_pb2_grpc.GRPCInferenceServiceStub,
    grpc_client: GrpcDriver,
    request_message: Any,
    status: str,
    text: str,
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        grpc_stub.ModelInfer(request_message)
    assert (caught.value.code().name, caught.value.details()) == (status, text)
    check_simple(grpc_client)


def test_every_kind_of_parameter_is_accepted(grpc_stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    request = message()
    for key, kind, value in (
        ("a", "bool_param", False),
        ("b", "int64_param", -1),
        ("c", "string_param", ""),
        ("d", "double_param", 0.5),
        ("priority", "uint64_param", 1),
        ("timeout", "int64_param", 5_000_000),
        ("triton_enable_empty_final_response", "bool_param", True),
    ):
        setattr(request.parameters[key], kind, value)
    assert len(grpc_stub.ModelInfer(request).raw_output_contents) == 2


def test_repository_name_is_refused(grpc_stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    calls: tuple[Callable[[], Any], ...] = (
        lambda: grpc_stub.RepositoryIndex(pb.RepositoryIndexRequest(repository_name="r")),
        lambda: grpc_stub.RepositoryModelLoad(
            pb.RepositoryModelLoadRequest(repository_name="r", model_name="simple")
        ),
        lambda: grpc_stub.RepositoryModelUnload(
            pb.RepositoryModelUnloadRequest(repository_name="r", model_name="simple")
        ),
    )
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert caught.value.details() == "'repository_name' specification is not supported"


def test_health_service(server: Addresses) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=10) == b"\x08\x01"
