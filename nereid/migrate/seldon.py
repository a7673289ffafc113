"""Seldon: YAML of SeldonDeployments (Core 1) and Models (Core 2) whose models are at hand in a directory."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from nereid.migrate import mlserver
from nereid.migrate.documents import name_of, resources, typed
from nereid.migrate.formats import (
    RUNTIMES,
    is_triton_model,
    onnx,
    place_of,
    saved_model,
    triton_model,
    triton_models,
)
from nereid.migrate.plan import (
    Found,
    MigratedModel,
    MigrationError,
    Refused,
    attempt,
    model_name,
    noted,
)
from nereid.migrate.tfserving import versions_of

_DEPLOYMENT: Final = "SeldonDeployment"
_IMPLEMENTATIONS: Final = {
    "SKLEARN_SERVER": "sklearn",
    "XGBOOST_SERVER": "xgboost",
    "TENSORFLOW_SERVER": "tensorflow",
    "TRITON_SERVER": "triton",
}
_V2: Final = ("v2", "kfserving")
"""Protocols of Core 1 whose servers are MLServer and Triton."""
_COMPOSED: Final = {
    "Pipeline": "its steps are models: compose them by an ensemble or a model that calls them",
    "Experiment": "split requests between versions by a rollout (docs/operate/rollout.md)",
}
"""Resources of Core 2 that are made of models, and what to do instead."""
_CARRIED: Final = frozenset({"storageUri", "requirements", "replicas"})
_REPLICAS: Final = "ray_replicas"

_Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class _Metadata(msgspec.Struct):
    name: str


class _Parameter(msgspec.Struct):
    name: str
    value: str | None = None


class _Unit(msgspec.Struct, rename="camel"):
    """A node of a graph, Core 1."""

    name: str
    implementation: str | None = None
    type: str | None = None
    model_uri: str | None = None
    parameters: list[_Parameter] | None = None
    children: list["_Unit"] | None = None


class _Predictor(msgspec.Struct):
    graph: _Unit
    name: str = "default"
    replicas: _Count | None = None
    traffic: _Count | None = None


class _DeploymentSpec(msgspec.Struct):
    predictors: list[_Predictor]
    protocol: str | None = None
    replicas: _Count | None = None


class _Deployment(msgspec.Struct):
    metadata: _Metadata
    spec: _DeploymentSpec


class _ModelSpec(msgspec.Struct, rename="camel"):
    """Core 2."""

    storage_uri: str
    requirements: list[str] | None = None
    replicas: _Count | None = None


class _Model(msgspec.Struct):
    metadata: _Metadata
    spec: _ModelSpec


def models(source: Path, storage: Path | None) -> Iterator[Found]:
    """Return the models of a file of SeldonDeployments and Models.

    A model of Core 1 has the name of its node, by which clients of the v2 protocol ask it; where several of
    the file have that, the names of its deployment and predictor go before it.

    Args:
        source: YAML.
        storage: the directory with the models, each in one of its name; None where their addresses are file://
            below the directory of the file.

    Raises:
        MigrationError: there is none.
    """
    found = [each for each in resources(source) if each.get("kind") in (_DEPLOYMENT, "Model", *_COMPOSED)]
    if not found:
        raise MigrationError(f"{source} has no {_DEPLOYMENT} and no Model")
    names: Counter[str] = Counter()
    for resource in found:
        if resource["kind"] == _DEPLOYMENT:
            read = partial(_deployed, resource, storage, source, names)
        else:
            read = partial(_model, resource, storage, source)
        yield from attempt(name_of(resource), read)


def _deployed(
    document: dict[str, Any], storage: Path | None, source: Path, names: Counter[str]
) -> Iterator[Found]:
    """Return the models of a deployment; `names` counts those of the file."""
    deployment = typed(document, _Deployment, source)
    spec = deployment.spec
    for predictor in spec.predictors:
        units = list(_units(predictor.graph))
        notes = [*_notes(spec, predictor, units)]
        for unit in units:
            names[unit.name] += 1
            parts = (deployment.metadata.name, predictor.name, unit.name)
            name = unit.name if names[unit.name] == 1 else "-".join(parts)
            replicas = predictor.replicas if predictor.replicas is not None else spec.replicas
            find = partial(place_of, unit.model_uri or "", source, storage, name, deployment.metadata.name)
            read = partial(_unit, unit, name, spec.protocol in _V2, replicas, find)
            yield from noted(attempt(name, read), notes)


def _units(graph: _Unit) -> Iterator[_Unit]:
    yield graph
    for child in graph.children or ():
        yield from _units(child)


def _notes(spec: _DeploymentSpec, predictor: _Predictor, units: Sequence[_Unit]) -> Iterator[str]:
    if len(units) > 1:
        yield "it is a part of a graph, which is not carried over: compose its models by an ensemble"
    if len(spec.predictors) > 1:
        share = f" {predictor.traffic} % of" if predictor.traffic is not None else ""
        yield f"predictor '{predictor.name}' had{share} the requests: see rollouts (docs/operate/rollout.md)"
    if spec.protocol not in _V2:
        yield "its clients have to speak the v2 protocol: /api/v1.0/predictions is not served"


def _unit(
    unit: _Unit, name: str, is_v2: bool, replicas: int | None, find: Callable[[], Path]
) -> Iterator[Found]:
    name, kind = model_name(name), _IMPLEMENTATIONS.get(unit.implementation or "")
    if kind is None:
        what = f"is a '{unit.implementation}'" if unit.implementation else "is a container of its own"
        raise MigrationError(
            f"it {what}, which has to become a Python model (model.py); known: {', '.join(_IMPLEMENTATIONS)}"
        )
    given = {parameter.name: parameter.value for parameter in unit.parameters or ()}
    place = find()
    used = {"method"} if kind == "sklearn" else {"model_name"} if kind == "tensorflow" else set()
    notes = [f"the parameter {each} is not carried over" for each in sorted(set(given) - used)]
    if kind == "triton":
        yield from noted(triton_models(place), notes)
        return
    if kind == "tensorflow":
        made = saved_model(name, place)
    else:
        made = mlserver.model(place, mlserver.Settings(name=name, implementation=RUNTIMES[kind]))
        if kind == "sklearn" and not is_v2:  # Seldon's own server, whose default differs
            _set_function(made, given.get("method") or "predict_proba")
    yield _replicated(made._replace(notes=(*made.notes, *notes)), replicas)


def _set_function(made: MigratedModel, function: str) -> None:
    if function not in mlserver.OUTPUTS["sklearn"]:
        raise MigrationError(f"the method '{function}' is not carried over")
    made.config.parameters["predict_fn"].string_value = function


def _replicated(made: MigratedModel, replicas: int | None) -> MigratedModel:
    if replicas and replicas > 1:
        made.config.parameters[_REPLICAS].string_value = str(replicas)
    return made


def _model(document: dict[str, Any], storage: Path | None, source: Path) -> Iterator[Found]:
    """Return the model of a resource of Core 2."""
    if document["kind"] in _COMPOSED:
        yield Refused(name_of(document), f"{document['kind']}: {_COMPOSED[document['kind']]}")
        return
    model = typed(document, _Model, source)
    name, spec = model_name(model.metadata.name), model.spec
    place = place_of(spec.storage_uri, source, storage, name)
    made = _read(name, place, spec.requirements or [])
    unused = sorted(map(str, set(document["spec"]) - _CARRIED))
    notes = [f"{key} of its spec is not carried over" for key in unused]
    yield _replicated(made._replace(notes=(*made.notes, *notes)), spec.replicas)


def _read(name: str, place: Path, requirements: Sequence[str]) -> MigratedModel:
    """Return the model of a directory: of MLServer by its settings, else Triton's, else as required."""
    if (place / mlserver.SETTINGS).is_file():
        return mlserver.read(place, name)
    kind = next((each for each in RUNTIMES if each in requirements), "")
    if kind:
        return mlserver.model(place, mlserver.Settings(name=name, implementation=RUNTIMES[kind]))
    if is_triton_model(place) and not versions_of(place):
        return triton_model(name, place)
    if "tensorflow" in requirements:
        return saved_model(name, place)
    if "onnx" in requirements:
        return onnx(name, place)
    raise MigrationError(
        f"expected a model of MLServer or Triton in {place}, or requirements that name one of "
        f"{', '.join((*RUNTIMES, 'tensorflow', 'onnx'))}; it has {', '.join(requirements) or 'none'}"
    )
