"""Warm-up requests made from `model_warmup` of the configuration."""

import logging
import threading
from math import prod
from pathlib import Path

import numpy as np
from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import BY_CONFIG_NAME, DataType
from app.core.errors import internal
from app.core.tensors import InferRequest, InferResponse, Tensor
from backends.base import Backend, Instance, Request

logger = logging.getLogger(__name__)

_TIMEOUT_S = 600.0


def warm_up(backend: Backend, instance: Instance) -> None:
    """Execute every warm-up sample on an instance, `count` times each, as Triton does before READY.

    Raises:
        InferError: INTERNAL "failed to run warmup sample ..." when a sample fails.
    """
    model = instance.model
    for sample in model.config.model_warmup:
        if sample.batch_size == 0:
            continue
        request = _request(model.config, sample, model.directory)
        for number in range(sample.count or 1):
            about = f"model '{model.name}' instance {instance.name} is running warmup sample '{sample.name}'"
            logger.debug("%s for iteration %d", about, number + 1)
            _run(backend, instance, sample, request)


def _run(backend: Backend, instance: Instance, sample: mc.ModelWarmup, request: InferRequest) -> None:
    responses: list[InferResponse] = []
    finished = threading.Semaphore(0)

    def reply(response: InferResponse) -> None:
        responses.append(response)
        if response.final:
            finished.release()

    # Samples of a batching model are `batch_size` requests in one execution, each with one row.
    size = sample.batch_size if model_batches(instance.model.config) else 1
    requests = [Request(request, reply, lambda: False) for _ in range(size)]
    try:
        backend.instance_execute(instance, requests)
    except Exception as error:
        raise internal(f"failed to run warmup sample '{sample.name}': {error}; ") from error
    for _ in requests:
        if not finished.acquire(timeout=_TIMEOUT_S):
            raise internal(f"failed to run warmup sample '{sample.name}': no response; ")
    for response in responses:
        if response.error is not None:
            raise internal(f"failed to run warmup sample '{sample.name}': {response.error.message}; ")


def model_batches(config: mc.ModelConfig) -> bool:
    """Whether requests carry a batch dimension."""
    return bool(config.max_batch_size > 0)


def _request(config: mc.ModelConfig, sample: mc.ModelWarmup, directory: Path) -> InferRequest:
    tensors = tuple(
        _tensor(config, sample.name, name, source, directory) for name, source in sample.inputs.items()
    )
    return InferRequest(config.name, "", tensors, id=f"warmup {sample.name}")


def _tensor(
    config: mc.ModelConfig, sample: str, name: str, source: mc.ModelWarmup.Input, directory: Path
) -> Tensor:
    datatype = BY_CONFIG_NAME[mc.DataType.Name(source.data_type)]
    dims = tuple(source.dims)
    shape = (1, *dims) if model_batches(config) else dims
    if source.HasField("input_data_file"):
        return Tensor(name, datatype.name, shape, _file(directory, sample, source.input_data_file))
    random = source.HasField("random_data") and source.random_data
    return Tensor(name, datatype.name, shape, _generated(datatype, prod(shape), random))


def _generated(datatype: DataType, count: int, random: bool) -> bytes:
    if datatype.name == "BYTES":
        return bytes(4 * count)  # empty strings; Triton has no random strings either
    if random and datatype.dtype.kind == "f":
        return np.random.default_rng(0).random(count).astype(datatype.dtype).tobytes()
    if random and datatype.name != "BOOL":
        return np.random.default_rng(0).bytes(count * datatype.itemsize)
    return bytes(count * datatype.itemsize)


def _file(directory: Path, sample: str, file_name: str) -> bytes:
    folder = (directory / "warmup").resolve()
    path = (folder / file_name).resolve()
    if not path.is_relative_to(folder):
        raise internal(f"warmup sample '{sample}': data file '{file_name}' is outside the warmup directory")
    try:
        return path.read_bytes()
    except OSError as error:
        raise internal(f"warmup sample '{sample}': cannot read '{file_name}': {error.strerror}") from error
