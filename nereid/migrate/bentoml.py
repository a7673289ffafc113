"""BentoML: the models and runners of a Bento, or the models that a bentofile.yaml names."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from nereid.migrate.documents import MAX_TEXT, parse_yaml, typed
from nereid.migrate.formats import onnx, saved_model, torchscript
from nereid.migrate.mlserver import OUTPUTS, python_model
from nereid.migrate.plan import (
    Found,
    MigratedModel,
    MigrationError,
    Refused,
    attempt,
    file_inside,
    model_name,
    noted,
    read_bounded,
)

_BENTO: Final = "bento.yaml"
_BENTOFILE: Final = "bentofile.yaml"
_MODEL: Final = "model.yaml"
_CUSTOM: Final = "custom_objects.pkl"
_PYTHON: Final = {
    "bentoml.sklearn": ("sklearn", "saved_model.pkl"),
    "bentoml.xgboost": ("xgboost", "saved_model.ubj", "saved_model.json"),
    "bentoml.lightgbm": ("lightgbm", "saved_model.txt"),
}
_GRAPHS: Final = ("bentoml.tensorflow", "bentoml.tensorflow_v2", "bentoml.keras")
_OTHERS: Final = {"bentoml.onnx": onnx, "bentoml.torchscript": torchscript}
_KNOWN: Final = (*_PYTHON, *_GRAPHS, *_OTHERS)
_BATCH: Final = 100
"""Rows of a batch of a runner, unless BentoML's configuration says otherwise."""
_CODE: Final = (
    "the service's APIs are code, which is not carried over: clients ask the model itself, by v2's inference"
)


class _Wanted(msgspec.Struct):
    """A model of a Bento, by its tag: `name:version`, or `name` for the latest."""

    tag: str
    registry: str | None = None


class _Runner(msgspec.Struct):
    name: str
    models: list[str] | None = None
    resource_config: dict[str, Any] | None = None


class _Service(msgspec.Struct):
    name: str | None = None
    models: list[_Wanted] | None = None


class _Bento(msgspec.Struct):
    """A bento.yaml, or a bentofile.yaml."""

    models: list[str | _Wanted] | None = None
    runners: list[_Runner] | None = None
    services: list[_Service] | None = None


class _Signature(msgspec.Struct):
    batchable: bool | None = None


class _Info(msgspec.Struct):
    """The model.yaml of a model."""

    module: str
    signatures: dict[str, _Signature] | None = None


def models(source: Path, storage: Path | None) -> Iterator[Found]:
    """Return the models of a Bento; nothing of its code is imported.

    Args:
        source: the directory of a Bento, or of a bentofile.yaml, or one of these files.
        storage: BentoML's store of models; None for the one in the Bento.

    Raises:
        MigrationError: it has none.
    """
    path = _file(source)
    documents = parse_yaml(read_bounded(path, MAX_TEXT), path)
    bento = typed(documents[0] if documents else None, _Bento, path)
    wanted = list(_wanted(bento))
    if not wanted and not bento.runners:
        raise MigrationError(
            f"{path} names no models: build the Bento first, and name its directory; a service of code alone "
            "has to become Python models (model.py)"
        )
    stores = [path.parent / "models", *([storage] if storage is not None else [])]
    runners = {tag: runner for runner in bento.runners or () for tag in runner.models or ()}
    for model in wanted:
        read = partial(_models, model, stores, runners.get(model.tag))
        yield from noted(attempt(model.tag, read), (_CODE,))
    for runner in bento.runners or ():
        if not runner.models:
            yield Refused(runner.name, "the runner is code, which has to become a Python model (model.py)")


def _file(source: Path) -> Path:
    if not source.is_dir():
        return source
    for name in (_BENTO, _BENTOFILE):
        if (source / name).is_file():
            return source / name
    raise MigrationError(f"there is no {_BENTO} and no {_BENTOFILE} in {source}")


def _wanted(bento: _Bento) -> Iterator[_Wanted]:
    """Return the models, each once: newer Bentos name them with their services, too."""
    services = (model for service in bento.services or () for model in service.models or ())
    known = set()
    for each in (*(bento.models or ()), *services):
        model = each if isinstance(each, _Wanted) else _Wanted(each)
        if model.tag not in known:
            known.add(model.tag)
            yield model


def _models(model: _Wanted, stores: list[Path], runner: _Runner | None) -> list[Found]:
    if model.registry not in (None, "bentoml"):
        raise MigrationError(f"it is in the registry '{model.registry}': serve its folder by the backend llm")
    name = model_name(model.tag.partition(":")[0])
    directory = _directory(name, model.tag.partition(":")[2], stores)
    path = directory / _MODEL
    info = typed(next(iter(parse_yaml(read_bounded(path, MAX_TEXT), path)), None), _Info, path)
    made = _read(name, directory, info)
    notes = [*_set_resources(made.config, runner.resource_config or {})] if runner is not None else []
    return [made._replace(notes=(*made.notes, *notes))]


def _directory(name: str, version: str, stores: list[Path]) -> Path:
    for store in stores:
        folder = file_inside(store, name)
        latest = folder / "latest"
        chosen = version
        if chosen in ("", "latest") and latest.is_file():
            chosen = read_bounded(latest, 256).decode("utf-8", "replace").strip()
        if chosen and (folder / model_name(chosen) / _MODEL).is_file():
            return file_inside(store, f"{name}/{chosen}")
    raise MigrationError(
        f"it is not in {' or '.join(map(str, stores))}: name BentoML's store by --storage (~/bentoml/models, "
        "whose tags 'bentoml models list' shows)"
    )


def _read(name: str, directory: Path, info: _Info) -> MigratedModel:
    """Return the model of a directory of a store."""
    signatures = info.signatures or {}
    if info.module in _PYTHON:
        kind, *files = _PYTHON[info.module]
        found = (file_inside(directory, each) for each in files)
        file = next((path for path in found if path.is_file()), None)
        if file is None:
            raise MigrationError(f"there is no {' or '.join(files)} in {directory}")
        return _python(name, kind, file, signatures)
    if info.module in _GRAPHS:
        made = saved_model(name, directory)
        own = tuple(f"/{each}" for each in (_MODEL, _CUSTOM))
        made = made._replace(items=tuple(item for item in made.items if not item.target.endswith(own)))
    elif info.module in _OTHERS:
        made = _OTHERS[info.module](name, directory)
    else:
        raise MigrationError(
            f"it is of {info.module}, which has to become a Python model (model.py); "
            f"known: {', '.join(_KNOWN)}"
        )
    batched = [each for each, signature in signatures.items() if signature.batchable]
    note = "adaptive batching is not carried over: declare max_batch_size and dynamic_batching"
    return made._replace(notes=(*made.notes, *((note,) if batched else ())))


def _python(name: str, kind: str, file: Path, signatures: Mapping[str, _Signature]) -> MigratedModel:
    known = [each for each in OUTPUTS[kind] if each in signatures]
    function = known[0] if known else OUTPUTS[kind][0]
    made = python_model(name, kind, file, function)
    notes = [f"'{each}' is not carried over" for each in sorted({*signatures} - {function})]
    if function in signatures and signatures[function].batchable:
        made.config.max_batch_size = _BATCH
        made.config.dynamic_batching.SetInParent()
        notes.append(f"batches, and so requests, have at most {_BATCH} rows, as BentoML's by default")
    return made._replace(notes=(*made.notes, *notes))


def _set_resources(config: mc.ModelConfig, resources: Mapping[str, Any]) -> Iterator[str]:
    """Set what a runner reserves; return notes."""
    for key, value in resources.items():
        amount = typed(value, float | list[int | str] | None, f"resource_config.{key}")  # type: ignore[arg-type]
        if key == "cpu" and isinstance(amount, float):
            config.parameters["ray_num_cpus"].string_value = f"{amount:g}"
        elif key == "nvidia.com/gpu" and amount:
            config.instance_group.add(count=1, kind=mc.ModelInstanceGroup.KIND_GPU)
        elif amount:
            yield f"the resource {key} of its runner is not carried over"
