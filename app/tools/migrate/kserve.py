"""KServe: the YAML of InferenceServices whose models are at hand in a directory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from app.tools.migrate import mlserver, tfserving, torchserve
from app.tools.migrate.plan import Item, MigratedModel, MigrationError, files_below, read_bounded

_MAX_TEXT: Final = 16 << 20
_MAX_DOCUMENTS: Final = 1000
_RUNTIMES: Final = {
    "sklearn": "mlserver_sklearn.SKLearnModel",
    "xgboost": "mlserver_xgboost.XGBoostModel",
    "lightgbm": "mlserver_lightgbm.LightGBMModel",
}
_FORMATS: Final = (*_RUNTIMES, "tensorflow", "pytorch", "onnx", "triton")


def models(source: Path, storage: Path | None) -> Iterator[MigratedModel]:
    """Return the models of a file of InferenceServices.

    Args:
        source: YAML.
        storage: the directory with the models, each in one of its service's name; None where `storageUri` is
            a file:// of this machine.

    Raises:
        MigrationError: there is none, or one cannot be migrated.
    """
    services = [service for service in _documents(source) if service.get("kind") == "InferenceService"]
    if not services:
        raise MigrationError(f"{source} has no InferenceService")
    for service in services:
        yield from _models(service, storage)


def _documents(source: Path) -> list[dict[str, Any]]:
    try:
        documents = list(yaml.safe_load_all(read_bounded(source, _MAX_TEXT)))
    except (yaml.YAMLError, RecursionError) as error:
        raise MigrationError(f"{source}: {error}") from None
    return [document for document in documents[:_MAX_DOCUMENTS] if isinstance(document, dict)]


def _models(service: dict[str, Any], storage: Path | None) -> Iterator[MigratedModel]:
    try:
        name = str(service["metadata"]["name"])
        predictor = dict(service["spec"]["predictor"])
    except (KeyError, TypeError, ValueError):
        raise MigrationError("an InferenceService has no metadata.name or spec.predictor") from None
    kind, model = _format(name, predictor)
    place = _place(name, str(model.get("storageUri", "")), storage)
    notes = [
        f"spec.{part} is not carried over" for part in ("transformer", "explainer") if part in service["spec"]
    ]
    notes += [f"{key} of the predictor is not carried over" for key in sorted({*predictor} - {"model", kind})]
    for made in _read(kind, name, place):
        yield made._replace(notes=(*made.notes, *notes))


def _format(name: str, predictor: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the format of a predictor's model, and its description, in the new or the old form."""
    model = predictor.get("model")
    if isinstance(model, dict):
        kind = str((model.get("modelFormat") or {}).get("name"))
    else:
        kind = next((each for each in _FORMATS if isinstance(predictor.get(each), dict)), "")
        model = predictor.get(kind)
    if kind not in _FORMATS or not isinstance(model, dict):
        raise MigrationError(f"service '{name}': expected a model of {', '.join(_FORMATS)}")
    return kind, model


def _place(name: str, uri: str, storage: Path | None) -> Path:
    if storage is not None:
        place = storage / name
        place = place if place.is_dir() else storage
    elif uri.startswith("file://"):
        place = Path(uri.removeprefix("file://"))
    else:
        raise MigrationError(
            f"service '{name}' is at '{uri}': copy its files, and name their directory by --storage"
        )
    if not place.exists():
        raise MigrationError(f"service '{name}': there is no {place}")
    return place


def _read(kind: str, name: str, place: Path) -> Iterator[MigratedModel]:
    if kind == "tensorflow":
        for model in tfserving.models(place):
            model.config.name = name
            yield model
    elif kind == "pytorch":
        properties = place / "config" / "config.properties"
        store = place / "model-store"
        yield from torchserve.models(
            store if store.is_dir() else properties if properties.is_file() else place
        )
    elif kind in _RUNTIMES:
        yield mlserver.model(place, {"name": name, "implementation": _RUNTIMES[kind]})
    else:
        yield _triton(name, place) if kind == "triton" else _onnx(name, place)


def _triton(name: str, place: Path) -> MigratedModel:
    raise MigrationError(f"service '{name}' has a repository of Triton: serve {place} as it is")


def _onnx(name: str, place: Path) -> MigratedModel:
    from tritonclient.grpc import model_config_pb2 as mc

    found = [place] if place.is_file() else sorted(place.rglob("*.onnx"))
    if len(found) != 1:
        raise MigrationError(f"service '{name}': expected one .onnx in {place}")
    config = mc.ModelConfig(name=name, platform="onnxruntime_onnx")
    items = list(files_below(found[0].parent, "1")) if place.is_dir() else []
    renamed = [
        item._replace(target="1/model.onnx") if item.source == found[0].resolve() else item for item in items
    ]
    return MigratedModel(config, tuple(renamed) or (Item("1/model.onnx", found[0]),))
