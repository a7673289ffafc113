"""Alibaba PAI-EAS: the JSON of a service whose model is at hand in a directory."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from nereid.migrate.documents import MAX_TEXT, parse_json, typed
from nereid.migrate.formats import place_of, saved_model, torchscript, triton_models
from nereid.migrate.plan import (
    Found,
    MigratedModel,
    MigrationError,
    attempt,
    file_inside,
    model_name,
    noted,
    read_bounded,
)
from nereid.migrate.tfserving import Batching

_CARRIED: Final = frozenset(
    {"name", "model_path", "model_entry", "processor", "processor_params", "metadata"}
)
_TENSORFLOW: Final = ("tensorflow_cpu", "tensorflow_gpu")
_PYTORCH: Final = ("pytorch_cpu", "pytorch_gpu")
_TRITON: Final = "triton"
_REPOSITORY: Final = "--model-repository="
_RPC: Final = "rpc."
_OF_METADATA: Final = frozenset({"name", "instance", "cpu", "gpu", "memory", "rpc"})
_OF_BATCHES: Final = frozenset({"batching", "max_batch_size", "max_batch_timeout"})

_Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class _Metadata(msgspec.Struct):
    """What an instance of a service has; memory in megabytes."""

    name: str | None = None
    instance: _Count | None = None
    cpu: Annotated[float, msgspec.Meta(ge=0, le=10_000)] | None = None
    gpu: Annotated[float, msgspec.Meta(ge=0, le=1000)] | None = None
    memory: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] | None = None
    rpc: dict[str, Any] | None = None


class _Batches(msgspec.Struct):
    """How requests are put together; the timeout is in milliseconds."""

    batching: bool = False
    max_batch_size: Annotated[int, msgspec.Meta(ge=1, lt=1 << 20)] = 16
    max_batch_timeout: Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)] = 50


class _Service(msgspec.Struct):
    name: str | None = None
    model_path: str | None = None
    model_entry: str | None = None
    processor: str | None = None
    processor_params: list[str] | None = None
    metadata: _Metadata | None = None


def models(source: Path, storage: Path | None) -> Iterator[Found]:
    """Return the models of a service, or of the services of a directory.

    Args:
        source: the JSON that eascmd creates a service of, or a directory of such files.
        storage: the model, or a directory of the service's name with it; None for file:// addresses
            below the directory of the file.

    Raises:
        MigrationError: there is none.
    """
    files = sorted(source.glob("*.json")) if source.is_dir() else [source]
    if not files:
        raise MigrationError(f"there is no .json in {source}")
    for file in files:
        yield from attempt(file.stem, partial(_models, file, storage))


def _models(source: Path, storage: Path | None) -> Iterator[Found]:
    document = parse_json(read_bounded(source, MAX_TEXT), source)
    service = typed(document, _Service, source)
    metadata = service.metadata or _Metadata()
    name = model_name(service.name or metadata.name)
    rpc = _rpc(document.get("metadata") or {}, metadata.rpc or {})
    notes = [f"{key} is not carried over" for key in sorted(set(document) - _CARRIED)]
    others = {key for key in document.get("metadata") or {} if not key.startswith(_RPC)} - _OF_METADATA
    others |= {f"{_RPC}{key}" for key in set(rpc) - _OF_BATCHES}
    notes += [f"metadata.{key} is not carried over" for key in sorted(others)]
    notes.append(
        f"behind a gateway that leaves the path as it is, start with --http-path-prefix=/api/predict/{name}"
    )
    batches = typed(rpc, _Batches, "metadata.rpc")
    yield from noted(_read(name, service, metadata, batches, source, storage), notes)


def _rpc(metadata: dict[str, Any], nested: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of requests, which are written in two ways."""
    flat = {key.removeprefix(_RPC): value for key, value in metadata.items() if key.startswith(_RPC)}
    return {**nested, **flat}


def _read(
    name: str, service: _Service, metadata: _Metadata, batches: _Batches, source: Path, storage: Path | None
) -> Iterator[Found]:
    processor = service.processor or ""
    if processor == _TRITON:
        yield from _triton(name, service, metadata, source, storage)
        return
    if not processor.startswith((*_TENSORFLOW, *_PYTORCH)):
        what = f"the processor '{processor}'" if processor else "an image or a processor of its own"
        raise MigrationError(
            f"it runs {what}, which has to become a Python model (model.py); known: "
            f"{', '.join((*_TENSORFLOW, *_PYTORCH, _TRITON))}"
        )
    place = place_of(service.model_path or "", source, storage, name)
    if service.model_entry:
        place = file_inside(place, service.model_entry)
    if place.is_file() and not place.suffix == ".pt":
        raise MigrationError(f"{place} is an archive: unpack it, and name its directory by --storage")
    if processor.startswith(_PYTORCH):
        made = torchscript(name, place)
        if batches.batching:
            made = made._replace(notes=(*made.notes, "batches: declare max_batch_size and dynamic_batching"))
    else:
        chosen = Batching(batches.max_batch_size, 1000 * batches.max_batch_timeout, 0)
        made = saved_model(name, place, chosen if batches.batching else None)
    yield made._replace(notes=(*made.notes, *_set_resources(made, metadata)))


def _set_resources(made: MigratedModel, metadata: _Metadata) -> Iterator[str]:
    """Have each instance of the service be a replica that reserves what it had; return notes."""
    parameters, gpus = made.config.parameters, int(metadata.gpu or 0)
    if metadata.instance and metadata.instance > 1:
        parameters["ray_replicas"].string_value = str(metadata.instance)
    if metadata.cpu:
        parameters["ray_num_cpus"].string_value = f"{metadata.cpu:g}"
    if metadata.memory:
        parameters["ray_memory_bytes"].string_value = str(metadata.memory << 20)
    if gpus:
        made.config.instance_group.add(count=1, kind=mc.ModelInstanceGroup.KIND_GPU)
    if gpus > 1:
        yield f"a replica uses one GPU, of {gpus}: declare more by instance_group"


def _triton(
    name: str, service: _Service, metadata: _Metadata, source: Path, storage: Path | None
) -> Iterator[Found]:
    """Return the models of a Triton repository; its flags are the server's."""
    flags = service.processor_params or []
    named = [flag.removeprefix(_REPOSITORY) for flag in flags if flag.startswith(_REPOSITORY)]
    if len(named) > 1:
        raise MigrationError("it has several repositories: migrate each, with its own --storage")
    place = place_of(named[0] if named else service.model_path or "", source, storage, name)
    yield from noted(triton_models(place), _server_notes(flags, metadata))


def _server_notes(flags: Sequence[str], metadata: _Metadata) -> Iterator[str]:
    if others := [flag for flag in flags if not flag.startswith(_REPOSITORY)]:
        yield f"start the server with {' '.join(others)}"
    given = {key: getattr(metadata, key) for key in ("instance", "cpu", "gpu", "memory")}
    if size := ", ".join(f"{key} {value:g}" for key, value in given.items() if value):
        yield f"the service had {size} (MB): as much as the server needs, which has all of its models"
