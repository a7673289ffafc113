"""gRPC requests that two servers should answer alike: a table of names, methods and messages."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from tests.peer.http_requests import WIRE_ROW


class Call(NamedTuple):
    """One call; a stream sends all messages, closes its side and reads to the end."""

    method: str
    messages: tuple[Message, ...]


KINDS: dict[str, Any] = {
    "bool_param": True,
    "int64_param": 5,
    "string_param": "a",
    "double_param": 1.5,
    "uint64_param": 5,
}
CONTENTS: dict[str, list[Any]] = {
    "bool_contents": [True],
    "int_contents": [1],
    "int64_contents": [1],
    "uint_contents": [1],
    "uint64_contents": [1],
    "fp32_contents": [1],
    "fp64_contents": [1],
    "bytes_contents": [b"a"],
}
DATATYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32"]
DATATYPES += ["FP64", "BYTES", "BF16", "STRING", ""]


def sums(*raw: bytes, **fields: Any) -> pb.ModelInferRequest:
    """A request to `sums` with this binary data; without any, with that of a correct request."""
    message = pb.ModelInferRequest(model_name="sums", raw_input_contents=raw or (WIRE_ROW, WIRE_ROW))
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    message.MergeFrom(pb.ModelInferRequest(**fields))
    return message


def with_parameter(key: str, kind: str, value: Any, where: str = "request") -> pb.ModelInferRequest:
    message = sums()
    owner = {"request": message, "input": message.inputs[0]}.get(where) or message.outputs.add(name="OUTPUT0")
    setattr(owner.parameters[key], kind, value)
    return message


def first_input(raw: tuple[bytes, ...] = (WIRE_ROW, WIRE_ROW), **fields: Any) -> pb.ModelInferRequest:
    message = sums(*raw)
    for key, value in fields.items():
        if key == "shape":
            message.inputs[0].shape[:] = value
        else:
            setattr(message.inputs[0], key, value)
    return message


def typed(datatype: str, count: int = 1, **contents: list[Any]) -> pb.ModelInferRequest:
    """A request to `types` with typed contents."""
    message = pb.ModelInferRequest(model_name="types")
    tensor = message.inputs.add(name=f"INPUT_{datatype}", datatype=datatype, shape=[1, count])
    tensor.contents.CopyFrom(pb.InferTensorContents(**contents))
    return message


def one(
    model: str, name: str, datatype: str, shape: list[int], raw: bytes, **fields: Any
) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=[raw], **fields)
    message.inputs.add(name=name, datatype=datatype, shape=shape)
    return message


def string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "little") + value


def count(responses: int, identity: str = "", empty_final: bool = False) -> pb.ModelInferRequest:
    message = one("square_int32", "IN", "INT32", [1], responses.to_bytes(4, "little"), id=identity)
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    return message


def fails(way: str) -> pb.ModelInferRequest:
    return one("fails", "IN", "BYTES", [1], string(way.encode()), id=way)


def sequence(kind: str, value: Any, start: bool = True, end: bool = True) -> pb.ModelInferRequest:
    message = one("adder", "INPUT", "INT32", [1, 1], b"\1\0\0\0")
    setattr(message.parameters["sequence_id"], kind, value)
    message.parameters["sequence_start"].bool_param = start
    message.parameters["sequence_end"].bool_param = end
    return message


def contents_beside_raw() -> pb.ModelInferRequest:
    message = sums()
    message.inputs[0].contents.int_contents[:] = [1] * 16
    return message


def two_contents() -> pb.ModelInferRequest:
    return typed("INT32", int_contents=[1], fp32_contents=[1])


def outputs(*names: str) -> pb.ModelInferRequest:
    message = sums()
    for name in names:
        message.outputs.add(name=name)
    return message


def infers() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    """Messages of ModelInfer, which go alone and on a stream."""
    yield from models_and_tensors()
    yield from buffers()
    yield from typed_contents()
    yield from parameters()
    yield from tensor_parameters()
    yield from answers()


def models_and_tensors() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    yield "plain request", sums()
    yield "with an id", sums(id="7")
    for version in ("1", "9", "0", "x", "-1", "1.0", "1x", " 1", "99999999999999999999"):
        yield f"version {version!r}", sums(model_version=version)
    yield "unknown model", pb.ModelInferRequest(model_name="nobody")
    yield "no model", pb.ModelInferRequest()
    yield "no inputs", pb.ModelInferRequest(model_name="sums")
    for shape in (
        [16],
        [1, 15],
        [1, 17],
        [1, 16, 1],
        [2, 16],
        [0, 16],
        [9, 16],
        [1, 0],
        [-1, 16],
        [2**62, 16],
        [],
    ):
        yield f"shape {shape}", first_input(shape=shape)
    for datatype in ("INT64", "INT31", "int32", "", "BYTES"):
        yield f"data type {datatype!r}", first_input(datatype=datatype)
    for name in ("INPUT1", "INPUT9", ""):
        yield f"input name {name!r}", first_input(name=name)
    yield "missing input", one("sums", "INPUT0", "INT32", [1, 16], WIRE_ROW)
    yield "empty input beside", sums(inputs=[pb.ModelInferRequest.InferInputTensor()])


def buffers() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    for raw in (
        (WIRE_ROW,),
        (WIRE_ROW,) * 3,
        (b"", WIRE_ROW),
        (WIRE_ROW[:-1], WIRE_ROW),
        (WIRE_ROW * 2, WIRE_ROW),
    ):
        yield f"raw contents of {[len(part) for part in raw]} bytes", first_input(raw)
    yield "contents beside raw", contents_beside_raw()
    yield "two kinds of contents", two_contents()
    for names in (("OUTPUT1",), ("OUTPUT1", "OUTPUT0"), ("OUTPUT0", "OUTPUT0"), ("OUTPUT9",), ("",)):
        yield f"outputs {names}", outputs(*names)


def typed_contents() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    for datatype, kind in itertools.product(DATATYPES, CONTENTS):
        yield f"{datatype} in {kind}", typed(datatype, 1, **{kind: CONTENTS[kind]})
    for value in (300, -1, 2**31 - 1):
        yield f"INT8 {value}", typed("INT8", int_contents=[value])
    yield "UINT8 300", typed("UINT8", uint_contents=[300])
    yield "contents too few", typed("INT32", 2, int_contents=[1])
    yield "contents too many", typed("INT32", 1, int_contents=[1, 2])
    yield "contents empty", typed("INT32", 0)
    yield "strings too few", typed("BYTES", 2, bytes_contents=[b"a"])
    yield "strings too many", typed("BYTES", 1, bytes_contents=[b"a", b"b"])
    yield "string not UTF-8", typed("BYTES", 1, bytes_contents=[b"\xff"])


def parameters() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    keys = [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "mine",
        "triton_mine",
        "headers",
    ]
    keys += ["triton_enable_empty_final_response", "binary_data_output"]
    for key, (kind, value) in itertools.product(keys, KINDS.items()):
        yield f"parameter {key} as {kind}", with_parameter(key, kind, value)
    for kind, value in (("int64_param", -1), ("int64_param", -(2**63)), ("uint64_param", 2**63)):
        for key in ("priority", "timeout", "sequence_id"):
            yield f"parameter {key} = {value} as {kind}", with_parameter(key, kind, value)


def tensor_parameters() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    for key in ("classification", "shared_memory_region", "shared_memory_byte_size", "binary_data", "mine"):
        for kind, value in KINDS.items():
            yield f"output parameter {key} as {kind}", with_parameter(key, kind, value, "output")
    for key in (
        "shared_memory_region",
        "shared_memory_byte_size",
        "shared_memory_offset",
        "binary_data_size",
        "mine",
    ):
        for kind, value in KINDS.items():
            yield f"input parameter {key} as {kind}", with_parameter(key, kind, value, "input")
    for value in (0, -1, 1, 16, 17, 1000000, 1000001, 2**31, 2**32, 2**62):
        yield f"{value} classes", with_parameter("classification", "int64_param", value, "output")


def answers() -> Iterator[tuple[str, pb.ModelInferRequest]]:
    """Of models that answer with what they were sent, fail, or keep sequences."""
    for data in (
        b"",
        b"\1",
        b"\1\0\0\0",
        b"\1\0\0\0ab",
        b"\xff\xff\xff\xffa",
        string(b"a") * 2,
        string(b"\xff"),
    ):
        yield f"string {data!r}", one("word", "IN", "BYTES", [1, 1], data)
    for way in (
        "UNKNOWN",
        "INTERNAL",
        "NOT_FOUND",
        "INVALID_ARG",
        "UNAVAILABLE",
        "UNSUPPORTED",
        "ALREADY_EXISTS",
        "plain",
    ):
        yield f"model fails: {way}", fails(way)
    yield "model answers nothing", fails("none")
    for kind, value in (("int64_param", 1), ("int64_param", 0), ("string_param", ""), ("string_param", "12")):
        yield f"sequence {value!r}", sequence(kind, value)
    yield "sequence of a long id", sequence("string_param", "a" * 129)
    yield "sequence not started", sequence("int64_param", 77, start=False, end=False)
    yield "no sequence", one("adder", "INPUT", "INT32", [1, 1], b"\1\0\0\0")


def streams() -> Iterator[tuple[str, tuple[pb.ModelInferRequest, ...]]]:
    yield "nothing", ()
    for responses in (0, 1, 3):
        yield f"{responses} responses", (count(responses, "a"),)
        yield f"{responses} responses and an empty one", (count(responses, "a", empty_final=True),)
    yield "wrong, then right", (sums(model_version="9", id="a"), sums(id="b"))
    yield "right, wrong, right", (sums(id="a"), fails("NOT_FOUND"), sums(id="c"))
    yield "two models", (sums(id="a"), one("word", "IN", "BYTES", [1, 1], string(b"x"), id="b"))
    yield (
        "empty final of an ordinary model",
        (with_parameter("triton_enable_empty_final_response", "bool_param", True),),
    )


def others() -> Iterator[tuple[str, Call]]:
    """Calls that are no inference."""
    yield from descriptions()
    yield from repository()
    yield from shared_memory()
    yield from settings()


def descriptions() -> Iterator[tuple[str, Call]]:
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        yield method, Call(method, (getattr(pb, f"{method}Request")(),))
    named = [
        ("sums", ""),
        ("sums", "1"),
        ("sums", "9"),
        ("sums", "x"),
        ("sums", "0"),
        ("nobody", ""),
        ("", ""),
    ]
    for method, (name, version) in itertools.product(("ModelReady", "ModelMetadata", "ModelConfig"), named):
        message = getattr(pb, f"{method}Request")(name=name, version=version)
        yield f"{method} {name!r} {version!r}", Call(method, (message,))
    for name in ("adder", "types", "word", "plain", "square_int32"):
        yield f"ModelConfig {name}", Call("ModelConfig", (pb.ModelConfigRequest(name=name),))
        yield f"ModelMetadata {name}", Call("ModelMetadata", (pb.ModelMetadataRequest(name=name),))
    for name, version in (("nobody", ""), ("sums", "9"), ("sums", "x")):
        message = pb.ModelStatisticsRequest(name=name, version=version)
        yield f"ModelStatistics {name!r} {version!r}", Call("ModelStatistics", (message,))


def repository() -> Iterator[tuple[str, Call]]:
    yield "index of a repository", Call("RepositoryIndex", (pb.RepositoryIndexRequest(repository_name="r"),))
    for where in ("r", ""):
        for name in ("nobody", ""):
            load = pb.RepositoryModelLoadRequest(repository_name=where, model_name=name)
            unload = pb.RepositoryModelUnloadRequest(repository_name=where, model_name=name)
            yield f"load {name!r} of {where!r}", Call("RepositoryModelLoad", (load,))
            yield f"unload {name!r} of {where!r}", Call("RepositoryModelUnload", (unload,))
    for key, kind in itertools.product(
        ("config", "file:1/model.py", "mine"), ("string_param", "bytes_param", "bool_param")
    ):
        load = pb.RepositoryModelLoadRequest(model_name="nobody")
        setattr(
            load.parameters[key], kind, {"string_param": "{}", "bytes_param": b"a", "bool_param": True}[kind]
        )
        yield f"load with {key} as {kind}", Call("RepositoryModelLoad", (load,))
    for kind in ("string_param", "int64_param", "bool_param"):
        unload = pb.RepositoryModelUnloadRequest(model_name="nobody")
        setattr(
            unload.parameters["unload_dependents"],
            kind,
            {"string_param": "a", "int64_param": 1, "bool_param": True}[kind],
        )
        yield f"unload with dependents as {kind}", Call("RepositoryModelUnload", (unload,))


def shared_memory() -> Iterator[tuple[str, Call]]:
    for name in ("", "r"):
        for kind in ("System", "Cuda"):
            for action in ("Status", "Unregister"):
                method = f"{kind}SharedMemory{action}"
                yield f"{method} {name!r}", Call(method, (getattr(pb, f"{method}Request")(name=name),))
        for key, size in (("/none", 1), ("", 1), ("/none", 0), ("triton_python_backend_shm_region_1", 1)):
            message = pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=size)
            yield f"register {name!r} {key!r} {size}", Call("SystemSharedMemoryRegister", (message,))
    cuda = pb.CudaSharedMemoryRegisterRequest(name="r", raw_handle=b"a", byte_size=1)
    yield "register CUDA", Call("CudaSharedMemoryRegister", (cuda,))


def settings() -> Iterator[tuple[str, Call]]:
    for name in ("", "sums", "nobody"):
        for key, values in (
            ("", []),
            ("trace_rate", ["x"]),
            ("trace_rate", ["1", "2"]),
            ("trace_level", ["OFF", "TIMESTAMPS"]),
            ("trace_level", ["X"]),
            ("trace_count", ["-2"]),
            ("trace_file", ["/tmp/x"]),
            ("mine", ["1"]),
            ("log_frequency", ["x"]),
        ):
            message = pb.TraceSettingRequest(model_name=name)
            if key:
                message.settings[key].value.extend(values)
            yield f"trace of {name!r}: {key} {values}", Call("TraceSetting", (message,))
    yield "log settings", Call("LogSettings", (pb.LogSettingsRequest(),))
    for key, (kind, value) in itertools.product(
        ("log_info", "log_verbose_level", "log_format", "log_file", "mine"),
        (("bool_param", True), ("uint32_param", 0), ("string_param", "a")),
    ):
        change = pb.LogSettingsRequest()
        setattr(change.settings[key], kind, value)
        yield f"log {key} as {kind}", Call("LogSettings", (change,))


def table() -> dict[str, Call]:
    """Every call by name, in the order to make them in."""
    calls = dict(others())
    for name, message in infers():
        calls[name] = Call("ModelInfer", (message,))
        calls[f"stream: {name}"] = Call("ModelStreamInfer", (message,))
    for name, messages in streams():
        calls[f"stream: {name}"] = Call("ModelStreamInfer", messages)
    return calls
