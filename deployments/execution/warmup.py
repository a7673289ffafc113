"""Warm-up: executions of the requests in `model_warmup` of the configuration."""

import logging
import threading
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import WILDCARD
from app.core.config.request_check import RequestChecker
from app.core.datatypes import BY_CONFIG_NAME, DataType
from app.core.errors import InferError, internal, invalid_arg
from app.core.files.paths import path_inside
from app.core.tensors import InferRequest, InferResponse, Tensor
from backends.base import Backend, Instance, Model, Request

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 600.0
_NO_REQUEST: Final = "[request id: <id_unknown>] "
_NO_TYPE: Final = DataType("<invalid>", "TYPE_INVALID", np.dtype(np.void), 0)
_ITEMSIZE: Final = 4
"""Bytes of an element of a data type without a fixed size, as in Triton: an empty string."""


def warm_up(backend: Backend, instance: Instance) -> None:
    """Execute every warm-up sample on an instance, `count` times each, as Triton does before READY.

    Raises:
        InferError: INVALID_ARG for a sample that the model's configuration does not fit, and "failed to run
            warmup sample ..." for one that fails; INTERNAL for data that cannot be read.
    """
    model = instance.model
    samples = [sample for sample in model.config.model_warmup if sample.batch_size]
    for sample, request in [(sample, _request(model, sample)) for sample in samples]:
        for number in range(sample.count or 1):
            about = f"model '{model.name}' instance {instance.name} is running warmup sample '{sample.name}'"
            logger.debug("%s for iteration %d", about, number + 1)
            errors = _errors(backend, instance, [request] * sample.batch_size)
            if errors:
                text = "".join(f"{error}; " for error in errors)
                raise invalid_arg(f"failed to run warmup sample '{sample.name}': {text}")


def check_samples(model: Model) -> None:
    """Check every warm-up sample against the configuration, without executing it.

    Raises:
        InferError: as `warm_up`, of a sample that does not fit.
    """
    for sample in model.config.model_warmup:
        if sample.batch_size:
            _request(model, sample)


def _errors(backend: Backend, instance: Instance, batch: Sequence[InferRequest]) -> list[str]:
    """Execute requests together; return the messages of those that fail."""
    responses: list[InferResponse] = []
    finished = threading.Semaphore(0)

    def receive(response: InferResponse) -> None:
        responses.append(response)
        if response.final:
            finished.release()

    size, limit = len(batch), instance.model.config.max_batch_size
    if size > max(1, limit):
        return [f"batch size {size} for '{instance.name}', max allowed is {limit}"] * size
    try:
        backend.instance_execute(instance, [Request(request, receive, lambda: False) for request in batch])
    except Exception as error:
        return [error.message if isinstance(error, InferError) else str(error)] * size
    for _ in batch:
        if not finished.acquire(timeout=_TIMEOUT_S):
            return ["no response"]
    return [response.failure.message for response in responses if response.failure is not None]


def _request(model: Model, sample: mc.ModelWarmup) -> InferRequest:
    """Make one of the `batch_size` requests of a sample: one row, if the model batches."""
    tensors = [_tensor(model, name, source) for name, source in sample.inputs.items()]
    inputs = {tensor.name for tensor in model.config.input}
    # Other tensors of a sample, such as control tensors of sequences, are none that a client could send.
    ordinary = tuple(tensor for tensor in tensors if tensor.name in inputs)
    RequestChecker(model.config).check(InferRequest(model.name, "", ordinary))
    return InferRequest(model.name, "", tuple(tensors))


def _tensor(model: Model, name: str, source: mc.ModelWarmup.Input) -> Tensor:
    datatype = BY_CONFIG_NAME.get(mc.DataType.Name(source.data_type), _NO_TYPE)
    dims = tuple(source.dims)
    if WILDCARD in dims:
        raise invalid_arg(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    shape = (1, *dims) if model.config.max_batch_size > 0 else dims
    data = _data(model, name, source, datatype, max(0, prod(dims)) if dims else 0)
    return Tensor(name, datatype.name, shape, data)


def _data(model: Model, name: str, source: mc.ModelWarmup.Input, datatype: DataType, count: int) -> bytes:
    size = count * (datatype.itemsize or _ITEMSIZE)
    match source.WhichOneof("input_data_type"):
        case "zero_data":
            return bytes(size)
        case "random_data":
            return _random(datatype, count, size)
        case "input_data_file":
            data = _file(model.directory, source.input_data_file)
        case _:
            raise invalid_arg(
                f"{_NO_REQUEST}warmup setting expects input '{name}' to have input_data_type set"
            )
    if datatype.name == "BYTES":
        return data
    if len(data) < size:
        raise invalid_arg(
            f"{_NO_REQUEST}warmup setting expects {size} bytes, but the data provided from"
            f" {source.input_data_file} only has {len(data)} bytes"
        )
    return data[:size]


def _random(datatype: DataType, count: int, size: int) -> bytes:
    if not datatype.itemsize or datatype.name == "BOOL":
        return bytes(size)  # empty strings; Triton has no random strings either
    if datatype.dtype.kind == "f":
        return np.random.default_rng(0).random(count).astype(datatype.dtype).tobytes()
    return np.random.default_rng(0).bytes(size)


def _file(directory: Path, file_name: str) -> bytes:
    path = path_inside(directory / "warmup", file_name)
    if path is None:
        raise internal(f"warmup data file '{file_name}' is outside the warmup directory")
    try:
        return path.read_bytes()
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from error
