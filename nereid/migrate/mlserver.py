"""MLServer: directories with `model-settings.json`."""

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import DATATYPES
from nereid.migrate.documents import MAX_TEXT, parse_json, typed
from nereid.migrate.plan import (
    Found,
    Item,
    MigratedModel,
    MigrationError,
    attempt,
    file_inside,
    model_name,
    read_bounded,
)

ADAPTER: Final = Path(__file__).parent / "mlserver_model.py"
SETTINGS: Final = "model-settings.json"
KINDS: Final = {
    "mlserver_sklearn.SKLearnModel": "sklearn",
    "mlserver_xgboost.XGBoostModel": "xgboost",
    "mlserver_lightgbm.LightGBMModel": "lightgbm",
}
FILES: Final = {
    "sklearn": ("model.joblib", "model.pickle", "model.pkl"),
    "xgboost": ("model.bst", "model.json", "model.ubj"),
    "lightgbm": ("model.bst", "model.txt"),
}
"""The files that its runtimes look for."""
OUTPUTS: Final = {
    "sklearn": ("predict", "predict_proba", "transform"),
    "xgboost": ("predict", "predict_proba"),
    "lightgbm": ("predict",),
}
"""The outputs that its runtimes answer with, whatever the settings declare."""
_CARRIED: Final = frozenset(
    {"name", "implementation", "parameters", "inputs", "outputs", "max_batch_size", "max_batch_time"}
    | {"parallel_workers", "versions", "platform"}
)
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Tensor(msgspec.Struct):
    """A declared input or output."""

    name: str
    datatype: str
    shape: list[int]


class Parameters(msgspec.Struct):
    """What settings say about the model's files."""

    uri: str | None = None
    version: str | float | None = None
    environment_tarball: str | None = None
    extra: dict[str, Any] | None = None


class Settings(msgspec.Struct):
    """A `model-settings.json`, as far as it is carried over."""

    name: str | None = None
    implementation: str | None = None
    parameters: Parameters | None = None
    inputs: list[Tensor] | None = None
    outputs: list[Tensor] | None = None
    max_batch_size: _Count | None = None
    max_batch_time: _Seconds | None = None
    parallel_workers: _Count | None = None


def models(source: Path) -> Iterator[Found]:
    """Return the models of a directory with a `model-settings.json`, or of several in it.

    Raises:
        MigrationError: it has none.
    """
    found = (
        [source] if (source / SETTINGS).is_file() else sorted(each.parent for each in source.rglob(SETTINGS))
    )
    if not found:
        raise MigrationError(f"there is no {SETTINGS} in {source}")
    for directory in found:
        yield from attempt(directory.resolve().name, partial(_models, directory))


def _models(directory: Path) -> list[Found]:
    return [read(directory)]


def read(directory: Path, name: str = "") -> MigratedModel:
    """Return the model of a directory with a `model-settings.json`; `name` takes the place of its name.

    Raises:
        MigrationError: it cannot be migrated.
    """
    path = directory / SETTINGS
    document = parse_json(read_bounded(path, MAX_TEXT), path)
    settings = typed(document, Settings, path)
    settings.name = name or settings.name
    return model(directory, settings, sorted(set(document) - _CARRIED))


def model(directory: Path, settings: Settings, unused: Collection[str] = ()) -> MigratedModel:
    """Return the model of a directory.

    Args:
        directory: has the model's files; none is read elsewhere.
        settings: of the model.
        unused: settings that mean nothing here.

    Raises:
        MigrationError: it is of another runtime, or its file is not there.
    """
    name = model_name(directory.resolve().name if settings.name is None else settings.name)
    kind = KINDS.get(str(settings.implementation))
    if kind is None:
        raise MigrationError(
            f"model '{name}' is implemented by '{settings.implementation}', which has to become a "
            f"Python model (model.py); known: {', '.join(KINDS)}"
        )
    parameters = settings.parameters or Parameters()
    file = _model_file(directory, kind, parameters.uri or ".")
    made = python_model(
        name, kind, file, (parameters.extra or {}).get("predict_fn"), _version(parameters.version)
    )
    _set_batching(made.config, settings)
    notes = [*_inputs(made.config, settings.inputs or [])]
    notes += [*_outputs(made.config, kind, settings.outputs or []), *made.notes]
    if parameters.environment_tarball:
        notes.append(
            "environment_tarball: name it by the parameter EXECUTION_ENV_PATH (docs/models/environments.md)"
        )
    notes += [f"{key} is not carried over" for key in unused]
    return made._replace(notes=tuple(notes))


def python_model(name: str, kind: str, file: Path, function: Any = None, version: int = 1) -> MigratedModel:
    """Return a Python model that predicts by a file of scikit-learn, XGBoost or LightGBM.

    Args:
        name: of the model.
        kind: a key of `OUTPUTS`.
        file: the model's.
        function: the output that has another name than those of `OUTPUTS`; None for `predict`.
        version: of the model.

    Raises:
        MigrationError: there is no such function.
    """
    if function is not None and function not in OUTPUTS[kind]:
        raise MigrationError(f"'{function}' is no function of {kind}: known are {', '.join(OUTPUTS[kind])}")
    config = mc.ModelConfig(name=name, backend="python")
    for key, value in {"kind": kind, "file": file.name, "predict_fn": function}.items():
        if value:
            config.parameters[key].string_value = value
    items = (Item(f"{version}/model.py", content=ADAPTER.read_bytes()), Item(f"{version}/{file.name}", file))
    pickle = f"{file.name} is a pickle: it is loaded, by the model's own process, as the old server loads it"
    return MigratedModel(config, items, (pickle,) if kind == "sklearn" else ())


def _model_file(directory: Path, kind: str, uri: str) -> Path:
    place = file_inside(directory, uri.removeprefix("file://"))
    candidates = [place] if place.is_file() else [file_inside(place, name) for name in FILES[kind]]
    for path in candidates:
        if path.is_file():
            return path
    raise MigrationError(f"there is no model in {place}: expected {' or '.join(FILES[kind])}")


def _version(text: Any) -> int:
    digits = "".join(each for each in str(text or "1").partition(".")[0] if each.isdecimal())
    return int(digits[:18] or 1)


def _inputs(config: mc.ModelConfig, declared: list[Tensor]) -> Iterator[str]:
    if not declared:
        yield "it declares no inputs: the load completes 'predict' of FP32, or change config.pbtxt"
    for tensor in declared:
        _add(config, config.input, tensor)


def _outputs(config: mc.ModelConfig, kind: str, declared: list[Tensor]) -> Iterator[str]:
    """Add the declared outputs; without any the model completes its own when it is loaded."""
    for tensor in declared:
        if tensor.name in OUTPUTS[kind]:
            _add(config, config.output, tensor)
        else:
            yield f"the output '{tensor.name}' is not carried over: MLServer's {kind} answers with 'predict'"


def _add(config: mc.ModelConfig, target: Any, tensor: Tensor) -> None:
    if tensor.datatype not in DATATYPES:
        raise MigrationError(f"the tensor '{tensor.name}' has the unknown datatype '{tensor.datatype}'")
    dims = tensor.shape[1:] if config.max_batch_size else tensor.shape
    datatype = mc.DataType.Value(DATATYPES[tensor.datatype].config_name)
    target.add(name=tensor.name, data_type=datatype, dims=dims or [1])


def _set_batching(config: mc.ModelConfig, settings: Settings) -> None:
    size, seconds = settings.max_batch_size, settings.max_batch_time
    if size and seconds:  # MLServer batches requests when both are set; otherwise it has no limit of rows
        config.max_batch_size = size
        config.dynamic_batching.max_queue_delay_microseconds = int(seconds * 1e6)
    if settings.parallel_workers:
        config.instance_group.add(count=settings.parallel_workers)
