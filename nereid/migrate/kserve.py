"""KServe: the YAML of InferenceServices whose models are at hand in a directory."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nereid.migrate.documents import name_of, resources, typed
from nereid.migrate.formats import FORMATS, place_of, read
from nereid.migrate.plan import Found, MigrationError, attempt, model_name, noted


class _Metadata(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    predictor: dict[str, Any]
    transformer: Any = None
    explainer: Any = None


class _Service(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


class _Format(msgspec.Struct):
    name: str


class _Model(msgspec.Struct, rename="camel"):
    model_format: _Format | None = None
    storage_uri: str | None = None


def models(source: Path, storage: Path | None) -> Iterator[Found]:
    """Return the models of a file of InferenceServices.

    Args:
        source: YAML.
        storage: the directory with the models, each in one of its service's name; None where `storageUri` is
            a file:// below that of the file.

    Raises:
        MigrationError: there is none.
    """
    services = [service for service in resources(source) if service.get("kind") == "InferenceService"]
    if not services:
        raise MigrationError(f"{source} has no InferenceService")
    for service in services:
        yield from attempt(name_of(service), partial(_models, service, storage, source))


def _models(document: dict[str, Any], storage: Path | None, source: Path) -> Iterator[Found]:
    service = typed(document, _Service, source)
    name, predictor = model_name(service.metadata.name), service.spec.predictor
    kind, model = _format(predictor)
    place = place_of(model.storage_uri or "", source, storage, name)
    notes = [
        f"spec.{part} is not carried over"
        for part in ("transformer", "explainer")
        if getattr(service.spec, part) is not None
    ]
    notes += [f"{key} of the predictor is not carried over" for key in sorted({*predictor} - {"model", kind})]
    yield from noted(read(kind, name, place), notes)


def _format(predictor: dict[str, Any]) -> tuple[str, _Model]:
    """Return the format of a predictor's model, and its description, in the new or the old form."""
    if "model" in predictor:
        model = typed(predictor["model"], _Model, "spec.predictor.model")
        kind = model.model_format.name if model.model_format is not None else ""
    else:
        kind = next((each for each in FORMATS if each in predictor), "")
        model = typed(predictor.get(kind) or {}, _Model, f"spec.predictor.{kind}")
    if kind not in FORMATS:
        raise MigrationError(f"expected a model of {', '.join(FORMATS)}")
    return kind, model
