"""Workloads: each is one v2 request, encoded once for HTTP and once for gRPC."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
IDENTITY = "identity_fp32"
EFFICIENTNET = "efficientnet_lite0_onnx"
HEADER_LENGTH = "Inference-Header-Content-Length"
GRPC_TIMEOUT = "grpc-timeout"
DTYPES: Mapping[str, type[np.generic]] = {"FP32": np.float32, "INT32": np.int32, "BYTES": np.object_}
TYPE_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


class WrongAnswer(RuntimeError):
    """A server's response to a workload is an error, or differs from that of the others."""


@dataclass(frozen=True)
class Regions:
    """Files of POSIX shared memory for the inputs and the outputs, one after the other.

    Every request in flight writes the same outputs to the same place.
    """

    inputs: str
    outputs: str

    def write(self, arrays: Mapping[str, np.ndarray], nbytes: int) -> None:
        """Write the inputs, and make room for as many bytes of outputs."""
        shm_path(self.inputs).write_bytes(b"".join(array.tobytes() for array in arrays.values()))
        shm_path(self.outputs).write_bytes(bytes(nbytes))

    def remove(self) -> None:
        for name in (self.inputs, self.outputs):
            shm_path(name).unlink(missing_ok=True)


def wire_bytes(array: np.ndarray) -> bytes:
    """Return a tensor as the binary extension has it."""
    return bytes(serialize_byte_tensor(array).item()) if array.dtype == np.object_ else array.tobytes()


def from_wire(data: bytes, datatype: str) -> np.ndarray:
    """Return the elements of a tensor, in one dimension."""
    return deserialize_bytes_tensor(data) if datatype == "BYTES" else np.frombuffer(data, DTYPES[datatype])


def shm_path(name: str) -> Path:
    return Path("/dev/shm") / name


@dataclass(frozen=True)
class Workload:
    """One request to one model. The arrays carry the batch dimension.

    Over HTTP its tensors are behind the JSON, or with `binary` false within it. With `regions` they are in
    shared memory, and each output is as large as the input of the same place.

    Attributes:
        others: what is sent in turn with it: requests of the same model, with other tensors, ids or headers.
        headers: over gRPC they are metadata.
    """

    name: str
    model: str
    inputs: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    binary: bool = True
    regions: Regions | None = field(default=None, compare=False)
    protocols: tuple[str, ...] = ("http", "grpc")
    id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    others: tuple[Workload, ...] = field(default=(), compare=False)

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"

    def as_json(self) -> Workload:
        """Return the workload for a server without the binary extension."""
        return replace(self, binary=False)

    def requests(self) -> tuple[Workload, ...]:
        """Return all that is sent."""
        return (self, *self.others)

    def http_body(self) -> tuple[bytes, int]:
        """Return the v2 body, and the length of its JSON header (0: it is JSON alone)."""
        inputs = [
            {"name": name, "shape": array.shape, "datatype": TYPE_NAMES[array.dtype], **self._http_data(name)}
            for name, array in self.inputs.items()
        ]
        outputs = [{"name": name, **self._http_output(name)} for name in self.outputs]
        named = {"id": self.id} if self.id else {}
        whole = {**named, "inputs": inputs, "outputs": outputs}
        document = json.dumps(whole, separators=(",", ":")).encode()
        if self.regions or not self.binary:
            return document, 0
        return document + b"".join(map(wire_bytes, self.inputs.values())), len(document)

    def _http_data(self, name: str) -> dict[str, Any]:
        if self.regions:
            return {"parameters": self._place(self.regions.inputs, name)}
        array = self.inputs[name]
        if self.binary:
            return {"parameters": {"binary_data_size": len(wire_bytes(array))}}
        return {
            "data": [
                value.decode() if isinstance(value, bytes) else value for value in array.ravel().tolist()
            ]
        }

    def _http_output(self, name: str) -> dict[str, Any]:
        if self.regions:
            return {"parameters": self._place(self.regions.outputs, self._input_of(name))}
        return {"parameters": {"binary_data": True}} if self.binary else {}

    def _input_of(self, output: str) -> str:
        return list(self.inputs)[self.outputs.index(output)]

    def _place(self, region: str, name: str) -> dict[str, Any]:
        return {
            "shared_memory_region": region,
            "shared_memory_byte_size": self.inputs[name].nbytes,
            "shared_memory_offset": self.offset(name),
        }

    def offset(self, name: str) -> int:
        """Return the offset of an input in its region, which is that of its output too."""
        names = list(self.inputs)
        return sum(self.inputs[other].nbytes for other in names[: names.index(name)])

    def grpc_message(self) -> bytes:
        request = service_pb2.ModelInferRequest(model_name=self.model, id=self.id)
        for name, array in self.inputs.items():
            given = request.inputs.add(name=name, datatype=TYPE_NAMES[array.dtype], shape=array.shape)
            if self.regions:
                set_parameters(given, self._place(self.regions.inputs, name))
            else:
                request.raw_input_contents.append(wire_bytes(array))
        for name in self.outputs:
            wanted = request.outputs.add(name=name)
            if self.regions:
                set_parameters(wanted, self._place(self.regions.outputs, self._input_of(name)))
        return bytes(request.SerializeToString())

    def shared_outputs(self) -> dict[str, np.ndarray]:
        """Return the outputs that a server wrote to shared memory, and clear them."""
        assert self.regions is not None
        path = shm_path(self.regions.outputs)
        content = path.read_bytes()
        path.write_bytes(bytes(len(content)))
        found = {}
        for output in self.outputs:
            like = self.inputs[self._input_of(output)]
            offset = self.offset(self._input_of(output))
            found[output] = np.frombuffer(content, like.dtype, like.size, offset).reshape(like.shape)
        return found


def set_parameters(tensor: Any, values: Mapping[str, int | str]) -> None:
    for key, value in values.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(tensor.parameters[key], kind, value)


def all_workloads(repository: Path) -> tuple[Workload, ...]:
    """Return the suite's workloads; models that `repository` lacks are left out."""
    random = np.random.default_rng(0)
    ints = np.arange(16, dtype=np.int32).reshape(1, 16)
    suite = (
        float_workload(repository, "identity", IDENTITY, random, elements=16),
        Workload("simple", "simple", {"INPUT0": ints, "INPUT1": np.ones_like(ints)}, ("OUTPUT0", "OUTPUT1")),
        float_workload(repository, "identity_600KB", IDENTITY, random, elements=150_000),
        float_workload(repository, "efficientnet", EFFICIENTNET, random),
        shared(float_workload(repository, "identity_600KB_shm", IDENTITY, random, elements=150_000)),
    )
    return tuple(workload for workload in suite if workload and (repository / workload.model).exists())


def float_workload(
    repository: Path, name: str, model: str, random: np.random.Generator, elements: int = 1
) -> Workload | None:
    """One FP32 tensor in, one out; the model's last free dimension, if it has any, holds `elements`."""
    if not (repository / model).exists():
        return None
    config = read_config(repository, model)
    dims = [1 if size < 0 else size for size in config.input[0].dims]
    if config.input[0].dims[-1] < 0:
        dims[-1] = elements
    array = random.standard_normal((1, *dims), dtype=np.float32)
    return Workload(name, model, {config.input[0].name: array}, (config.output[0].name,))


def shared(workload: Workload | None) -> Workload | None:
    """Return the workload with its tensors in shared memory, under names of this process's own."""
    if workload is None:
        return None
    return replace(workload, regions=Regions(f"nb-{os.getpid()}-in", f"nb-{os.getpid()}-out"))


def read_config(repository: Path, model: str) -> Any:
    """Return the model's configuration."""
    text = (repository / model / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def ask_http(workload: Workload, port: int) -> dict[str, np.ndarray]:
    """Send the bytes that the load generator sends, once, and decode the response."""
    body, header_length = workload.http_body()
    headers = {**workload.headers, **({HEADER_LENGTH: str(header_length)} if header_length else {})}
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", workload.path, body, headers)
        reply = connection.getresponse()
        content = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        raise WrongAnswer(f"{workload.name} over HTTP: {reply.status} {content[:300]!r}")
    if workload.regions:
        return workload.shared_outputs()
    split = int(reply.headers.get(HEADER_LENGTH, len(content)))
    return decode_binary(json.loads(content[:split]), content[split:])


def decode_binary(header: Any, tail: bytes) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for output in header["outputs"]:
        if "data" in output:
            texts = [value.encode() if isinstance(value, str) else value for value in output["data"]]
            arrays[output["name"]] = np.array(texts, DTYPES[output["datatype"]]).reshape(output["shape"])
            continue
        end = offset + output["parameters"]["binary_data_size"]
        array = from_wire(tail[offset:end], output["datatype"])
        offset = end
        arrays[output["name"]] = array.reshape(output["shape"])
    return arrays


def ask_grpc(workload: Workload, port: int) -> dict[str, np.ndarray]:
    """Send the recorded message through grpcio, once, and decode the response."""
    with grpc.insecure_channel(
        f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)]
    ) as channel:
        call = channel.unary_unary(
            MODEL_INFER, response_deserializer=service_pb2.ModelInferResponse.FromString
        )
        try:
            metadata = [pair for pair in workload.headers.items() if pair[0] != GRPC_TIMEOUT]
            reply = call(workload.grpc_message(), timeout=60, metadata=metadata)
        except grpc.RpcError as error:
            raise WrongAnswer(f"{workload.name} over gRPC: {error}") from error
    if workload.regions:
        return workload.shared_outputs()
    return {
        output.name: from_wire(raw, output.datatype).reshape(tuple(output.shape))
        for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    }


def check_same(
    workload: Workload, answer: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> None:
    for name, array in expected.items():
        if name not in answer or not alike(answer[name], array):
            raise WrongAnswer(f"{workload.name}: output {name} differs between servers")


def alike(array: np.ndarray, other: np.ndarray) -> bool:
    if array.dtype == np.object_:
        return np.array_equal(array, other)
    return np.allclose(array, other, rtol=1e-3, atol=1e-4)
