"""MLServer: directories with `model-settings.json`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import DATATYPES
from app.tools.migrate.plan import Item, MigratedModel, MigrationError, read_bounded

ADAPTER: Final = Path(__file__).parent / "mlserver_model.py"
_SETTINGS: Final = "model-settings.json"
_MAX_TEXT: Final = 16 << 20
_KINDS: Final = {
    "mlserver_sklearn.SKLearnModel": "sklearn",
    "mlserver_xgboost.XGBoostModel": "xgboost",
    "mlserver_lightgbm.LightGBMModel": "lightgbm",
}
_FILES: Final = {
    "sklearn": ("model.joblib", "model.pickle", "model.pkl"),
    "xgboost": ("model.bst", "model.json", "model.ubj"),
    "lightgbm": ("model.bst", "model.txt"),
}
"""The files that its runtimes look for."""
_OUTPUTS: Final = {
    "sklearn": ("predict", "predict_proba", "transform"),
    "xgboost": ("predict", "predict_proba"),
    "lightgbm": ("predict",),
}
"""The outputs that its runtimes answer with, whatever the settings declare."""
_CARRIED: Final = frozenset(
    {"name", "implementation", "parameters", "inputs", "outputs", "max_batch_size", "max_batch_time"}
    | {"parallel_workers", "versions", "platform"}
)


def models(source: Path) -> Iterator[MigratedModel]:
    """Return the models of a directory with a `model-settings.json`, or of several in it.

    Raises:
        MigrationError: it has none, or one cannot be migrated.
    """
    found = (
        [source]
        if (source / _SETTINGS).is_file()
        else sorted(each.parent for each in source.rglob(_SETTINGS))
    )
    if not found:
        raise MigrationError(f"there is no {_SETTINGS} in {source}")
    for directory in found:
        yield model(directory, _settings(directory / _SETTINGS))


def model(directory: Path, settings: Mapping[str, Any]) -> MigratedModel:
    """Return the model of a directory.

    Raises:
        MigrationError: it is of another runtime, or its file is not there.
    """
    name = settings.get("name") or directory.resolve().name
    kind = _KINDS.get(str(settings.get("implementation")))
    if kind is None:
        raise MigrationError(
            f"model '{name}' is implemented by '{settings.get('implementation')}', which has to become a "
            f"Python model (model.py); known: {', '.join(_KINDS)}"
        )
    parameters = settings.get("parameters") or {}
    file = _model_file(directory, kind, parameters.get("uri"))
    config = mc.ModelConfig(name=str(name), backend="python")
    _set_batching(config, settings)
    notes = [*_inputs(config, settings.get("inputs") or [])]
    notes += _outputs(config, kind, settings.get("outputs") or [])
    chosen = {
        "kind": kind,
        "file": file.name,
        "predict_fn": (parameters.get("extra") or {}).get("predict_fn"),
    }
    for key, value in chosen.items():
        if value:
            config.parameters[key].string_value = str(value)
    version = _version(parameters.get("version"))
    items = [
        Item(f"{version}/model.py", content=ADAPTER.read_bytes()),
        Item(f"{version}/{file.name}", file),
    ]
    if kind == "sklearn":
        notes.append(
            f"{file.name} is a pickle: it is loaded, by the model's own process, as MLServer loads it"
        )
    if parameters.get("environment_tarball"):
        notes.append(
            "environment_tarball: name it by the parameter EXECUTION_ENV_PATH (docs/environments.md)"
        )
    notes += [f"{key} is not carried over" for key in sorted(set(settings) - _CARRIED)]
    return MigratedModel(config, tuple(items), tuple(notes))


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(read_bounded(path, _MAX_TEXT))
    except ValueError as error:
        raise MigrationError(f"{path}: {error}") from None
    if not isinstance(settings, dict):
        raise MigrationError(f"{path} is no JSON object")
    return settings


def _model_file(directory: Path, kind: str, uri: Any) -> Path:
    place = directory / str(uri or ".").removeprefix("file://")
    candidates = [place] if place.is_file() else [place / name for name in _FILES[kind]]
    for path in candidates:
        if path.is_file():
            return path
    raise MigrationError(f"there is no model in {place}: expected {' or '.join(_FILES[kind])}")


def _version(text: Any) -> int:
    digits = "".join(each for each in str(text or "1").partition(".")[0] if each.isdecimal())
    return int(digits[:18] or 1)


def _inputs(config: mc.ModelConfig, declared: list[Any]) -> Iterator[str]:
    if not declared:
        yield "it declares no inputs: the load completes 'predict' of FP32, or change config.pbtxt"
    for tensor in declared:
        _add(config, config.input, tensor)


def _outputs(config: mc.ModelConfig, kind: str, declared: list[Any]) -> Iterator[str]:
    """Add the declared outputs; without any the model completes its own when it is loaded."""
    for tensor in declared:
        name = tensor.get("name") if isinstance(tensor, dict) else None
        if name is None or name in _OUTPUTS[kind]:
            _add(config, config.output, tensor)
        else:
            yield f"the output '{name}' is not carried over: MLServer's {kind} answers with 'predict'"


def _add(config: mc.ModelConfig, target: Any, tensor: Any) -> None:
    try:
        datatype, shape = DATATYPES[tensor["datatype"]].config_name, [int(size) for size in tensor["shape"]]
        dims = shape[1:] if config.max_batch_size else shape
        target.add(name=tensor["name"], data_type=mc.DataType.Value(datatype), dims=dims or [1])
    except (KeyError, TypeError, ValueError):
        raise MigrationError(f"the tensor {tensor!r} has no name, datatype and shape") from None


def _set_batching(config: mc.ModelConfig, settings: Mapping[str, Any]) -> None:
    size, seconds = settings.get("max_batch_size") or 0, settings.get("max_batch_time") or 0
    if size and seconds:  # MLServer batches requests when both are set; otherwise it has no limit of rows
        config.max_batch_size = int(size)
        config.dynamic_batching.max_queue_delay_microseconds = int(float(seconds) * 1e6)
    if workers := settings.get("parallel_workers"):
        config.instance_group.add(count=max(int(workers), 1))
