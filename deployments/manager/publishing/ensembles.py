"""States of ensembles: pure functions of the served models.

An ensemble has no application. A loaded ensemble is READY whenever every model it calls is, and inherits from
them whether it is decoupled and the labels of its outputs. The texts are those of Triton's core:
ValidateEnsembleConfig (src/ensemble_scheduler/ensemble_utils.cc) and its dependency graph.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.ensemble import conditions
from app.core.config.model_config import WILDCARD, copied, datatype_name, dims_text
from app.core.config.normalise import ENSEMBLE
from app.core.config.validation import check_cache
from app.core.errors import InferError, invalid_arg
from app.core.identifiers import identifier, name_of, namespace_of
from app.routing.table import DEPENDENCY, IDLE, ModelState, VersionEntry

Entries = Mapping[str, Mapping[int, VersionEntry]]


def is_ensemble(config: mc.ModelConfig) -> bool:
    """Return whether a configuration is that of an ensemble, which needs no replica."""
    return bool(config.platform == ENSEMBLE)


def step_models(ensemble: str, config: mc.ModelConfig, known: Collection[str]) -> list[str]:
    """Return the known identifiers that the steps of an ensemble may refer to."""
    names = {step.model_name for step in config.ensemble_scheduling.step}
    return sorted({model for name in names for model in matching_models(ensemble, name, known)})


def matching_models(ensemble: str, name: str, known: Collection[str]) -> list[str]:
    """Return the known identifiers that a model name in an ensemble's step may refer to.

    A model of the ensemble's own namespace comes first; without one, those of all other namespaces match, and
    the step is ambiguous if there are several.
    """
    own = identifier(namespace_of(ensemble), name)
    return [own] if own in known else [model for model in known if name_of(model) == name]


def effective(entries: Entries) -> tuple[VersionEntry, ...]:
    """Return all entries for publication, with each loaded ensemble in the state that its steps allow."""
    every = [entry for versions in entries.values() for entry in versions.values()]
    if not any(entry.state is ModelState.READY and entry.ensemble for entry in every):
        return tuple(every)
    resolver = _Resolver(entries)
    return tuple(resolver.entry(entry) for entry in every)


def only_implicit(removed: str, entries: Entries, implicit: Iterable[str]) -> list[str]:
    """Return the models that were loaded only for a removed ensemble and that no other one calls."""
    every = [entry for versions in entries.values() for entry in versions.values() if entry.config]
    ensembles = {e.name: step_models(e.name, e.model_config, entries) for e in every if e.ensemble}
    called = ensembles.pop(removed, [])
    needed = {model for models in ensembles.values() for model in models}
    return [model for model in called if model in set(implicit) and model not in needed]


class _Resolver:
    """Resolves each ensemble once, through the models and ensembles that it calls."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        # With namespaces, an unloaded model must not make the name of a model elsewhere ambiguous.
        self._models = [model for model in entries if "/" not in model or _remains(entries[model])]
        self._known: dict[tuple[str, int], VersionEntry] = {}
        self._path: list[str] = []

    def entry(self, entry: VersionEntry) -> VersionEntry:
        if entry.state is not ModelState.READY or not entry.ensemble:
            return entry
        key = (entry.name, entry.version)
        if key not in self._known:
            self._path.append(entry.name)
            try:
                self._known[key] = self._ensemble(entry)
            except _NotReady as reason:
                self._known[key] = _unavailable(entry, reason.state, reason.text)
            except InferError as error:
                self._known[key] = _unavailable(entry, ModelState.UNAVAILABLE, error.with_code())
            finally:
                self._path.pop()
        return self._known[key]

    def _ensemble(self, entry: VersionEntry) -> VersionEntry:
        config = copied(entry.model_config)
        steps = [self._step(entry.name, step) for step in config.ensemble_scheduling.step]
        for step, called in zip(config.ensemble_scheduling.step, steps, strict=True):
            step.model_namespace = namespace_of(called.name)
        if any(step.undescribed for step in steps):  # they can be checked when they are loaded
            return msgspec.structs.replace(entry, config=config.SerializeToString(), reason=IDLE)
        check_tensors(config, [step.model_config for step in steps])
        config.model_transaction_policy.SetInParent()  # Triton prints it of every ensemble
        if any(step.decoupled for step in steps):
            check_origins(config, [step.decoupled for step in steps])
            config.model_transaction_policy.decoupled = True
            check_cache(config)
        return msgspec.structs.replace(
            entry,
            config=config.SerializeToString(deterministic=True),
            labels={**_labels(config, steps), **entry.labels},
        )

    def _step(self, ensemble: str, step: mc.ModelEnsembling.Step) -> VersionEntry:
        """Return the entry that a step calls.

        Raises:
            _NotReady: no version can be called now.
            InferError: the model is unknown, ambiguous or part of a cycle.
        """
        found = matching_models(ensemble, step.model_name, self._models)
        if len(found) != 1:
            text = "contains models that are not available or ambiguous"
            raise invalid_arg(f"ensemble {ensemble} {text}: {step.model_name}")
        name = found[0]
        if name in self._path:
            text = f"circular dependency between ensembles: {name} -> ... -> {self._path[-1]} -> {name}"
            raise invalid_arg(text)
        versions = [self.entry(entry) for entry in self._entries[name].values()]
        wanted = [e for e in versions if step.model_version in (e.version, 0, -1)]
        ready = [e for e in wanted if e.state is ModelState.READY]
        if not ready:
            raise _not_ready(ensemble, name, step.model_version, versions)
        return max(ready, key=lambda e: e.version)


def _remains(versions: Mapping[int, VersionEntry]) -> bool:
    return not all(entry.unloaded_by_request for entry in versions.values())


class _NotReady(Exception):
    """A step cannot be called now: the state and reason of its ensemble."""

    def __init__(self, state: ModelState, text: str) -> None:
        super().__init__(state, text)
        self.state = state
        self.text = text


def _not_ready(ensemble: str, name: str, version: int, versions: list[VersionEntry]) -> _NotReady:
    if any(entry.state is ModelState.LOADING for entry in versions):
        return _NotReady(ModelState.LOADING, "")
    if versions and all(entry.unloaded_by_request for entry in versions):
        return _NotReady(ModelState.UNAVAILABLE, "unloaded")
    if any(entry.state is ModelState.READY for entry in versions):
        text = f"ensemble '{ensemble}' depends on '{name}' whose required version {version} is not loaded."
        return _NotReady(ModelState.UNAVAILABLE, f"Invalid argument: {text}")
    text = f"ensemble '{ensemble}' depends on '{name}' which has no loaded version."
    failed = [entry for entry in versions if entry.reason and not entry.unloaded_by_request]
    if failed:
        errors = "".join(f"version {e.version} is at {e.state.value} state: {e.reason};" for e in failed)
        text += f" Model '{name}'{DEPENDENCY}: {errors}"
    return _NotReady(ModelState.UNAVAILABLE, f"Invalid argument: {text}")


def _unavailable(entry: VersionEntry, state: ModelState, reason: str) -> VersionEntry:
    return VersionEntry(entry.name, entry.version, state, reason, config=entry.config)


def _labels(config: mc.ModelConfig, steps: list[VersionEntry]) -> dict[str, tuple[str, ...]]:
    """Return the labels of the ensemble's outputs, from the models that produce them."""
    wanted = {output.name for output in config.output}
    return {
        tensor: entry.labels[output]
        for step, entry in zip(config.ensemble_scheduling.step, steps, strict=True)
        for output, tensor in step.output_map.items()
        if tensor in wanted and output in entry.labels
    }


class _Inferred(NamedTuple):
    """The type and shape of a tensor in the configuration of one model."""

    model: str
    datatype: int
    dims: tuple[int, ...]
    batches: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return (WILDCARD, *self.dims) if self.batches else self.dims

    def disagreement(self, other: "_Inferred") -> str:
        """Return why two models cannot share the tensor; "" when they can."""
        text = "inconsistent {}: {} is inferred from model {} while {} is inferred from model {}"
        if self.datatype != other.datatype:
            mine, theirs = datatype_name(self.datatype), datatype_name(other.datatype)
            return text.format("data type", mine, self.model, theirs, other.model)
        full = self.batches != other.batches and _match(self.shape, other.shape)
        if full or _match(self.dims, other.dims):
            return ""
        mine, theirs = dims_text(self.shape), dims_text(other.shape)
        return text.format("shape", mine, self.model, theirs, other.model)


def check_tensors(config: mc.ModelConfig, models: list[mc.ModelConfig]) -> None:
    """Check the steps of an ensemble against the configurations of the models that they call.

    Raises:
        InferError: INVALID_ARG for tensors or batch sizes that do not match.
    """
    # A reshaped input or output of the ensemble has its other shape between the steps; those of models
    # have theirs towards the backend, which an ensemble does not see.
    tensors = {
        io.name: _inferred(config, io, io.reshape.shape if io.HasField("reshape") else io.dims)
        for io in (*config.input, *config.output)
    }
    for step, model in zip(config.ensemble_scheduling.step, models, strict=True):
        if model.max_batch_size < config.max_batch_size and model.max_batch_size != 0:
            raise invalid_arg(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains "
                f"model {model.name} which only allows maximum batch size to be {model.max_batch_size}"
            )
        _check_step(config.name, step, model, tensors)
    for index, when in conditions(config).items():
        if when.tensor in tensors and tensors[when.tensor].datatype != mc.TYPE_BOOL:
            raise invalid_arg(
                f"in ensemble {config.name}, ensemble tensor {when.tensor} decides about step {index} "
                "and must be TYPE_BOOL"
            )


def check_origins(config: mc.ModelConfig, decoupled: Sequence[bool]) -> None:
    """Check that the inputs of each step, and the ensemble's outputs, come from at most one decoupled step.

    A response of one decoupled step has no counterpart among those of another. Tensors from before the step
    go with each of its responses; Triton refuses those as well.

    Raises:
        InferError: INVALID_ARG for a step, or the ensemble's outputs, of two decoupled steps.
    """
    # The decoupled steps that each tensor comes from, in order.
    origins: dict[str, tuple[int, ...]] = {io.name: () for io in config.input}
    waiting = dict(enumerate(config.ensemble_scheduling.step))
    while ready := [index for index, step in waiting.items() if origins.keys() >= {*step.input_map.values()}]:
        for index in ready:
            step = waiting.pop(index)
            origin = _origin(config.name, step.model_name, [origins[x] for x in step.input_map.values()])
            origin += (index,) if decoupled[index] else ()
            origins.update((tensor, origin) for tensor in step.output_map.values())
    _origin(config.name, config.name, [origins[io.name] for io in config.output if io.name in origins])


def _origin(ensemble: str, reader: str, origins: list[tuple[int, ...]]) -> tuple[int, ...]:
    longest = max(origins, key=len, default=())
    if any(origin != longest[: len(origin)] for origin in origins):
        raise invalid_arg(
            f"in ensemble {ensemble}, step of model '{reader}' receives inputs originated from different"
            " decoupled models"
        )
    return longest


def _check_step(
    ensemble: str, step: mc.ModelEnsembling.Step, model: mc.ModelConfig, tensors: dict[str, _Inferred]
) -> None:
    for io in model.input:
        if io.name not in step.input_map and not io.optional:
            text = f"input {io.name} in model {model.name} is not mapped to any ensemble tensors"
            raise invalid_arg(f"in ensemble {ensemble}, {text}")
    sides = (
        (step.input_map, model.input, "is mapping to non-existing input"),
        (step.output_map, model.output, "is mapped from non-existing output"),
    )
    for mapping, known, complaint in sides:
        by_name = {io.name: io for io in known}
        for name, tensor in sorted(mapping.items()):
            prefix = f"in ensemble {ensemble}, ensemble tensor {tensor}"
            if name not in by_name:
                raise invalid_arg(f"{prefix} {complaint} {name} in model {model.name}")
            inferred = _inferred(model, by_name[name], by_name[name].dims)
            why = tensors.setdefault(tensor, inferred).disagreement(inferred)
            if why:
                raise invalid_arg(f"{prefix}: {why}")


def _inferred(config: mc.ModelConfig, io: mc.ModelInput | mc.ModelOutput, dims: Iterable[int]) -> _Inferred:
    return _Inferred(config.name, io.data_type, tuple(dims), config.max_batch_size > 0)


def _match(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(
        a == b or WILDCARD in (a, b) for a, b in zip(one, other, strict=True)
    )
