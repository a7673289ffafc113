"""Completion of a configuration: backend and file name inferred from the files, and Triton's defaults.

Sources: AutoCompleteBackendFields, NormalizeModelConfig, NormalizeInstanceGroup and SetDefaultInstanceCount
in Triton's core (src/model_config_utils.cc).
"""

from collections.abc import Collection, Sequence
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.backend_facts import BackendFacts, ModelFormat, platforms
from app.core.config.model_config import copied
from app.core.errors import invalid_arg

ENSEMBLE: Final = "ensemble"
SEQUENCE_IDLE_DEFAULT_US: Final = 1_000_000
MAX_INSTANCES: Final = 1024
"""Instances of a version of a model: each is a thread, that of a Python model a process."""
_Group: Final = mc.ModelInstanceGroup
_PYTHON_FILE: Final = "model.py"


def refuse_ensemble_backend(config: mc.ModelConfig) -> None:
    """Say what a configuration with `backend: "ensemble"` should have, which Triton takes for any backend.

    Raises:
        InferError: INVALID_ARG for such a configuration.
    """
    if config.backend == ENSEMBLE:
        raise invalid_arg(
            f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE}' and empty backend type: "
            f'write platform: "{ENSEMBLE}" in place of backend: "{ENSEMBLE}"'
        )


def infer_backend(
    config: mc.ModelConfig, listing: Collection[str], backends: Sequence[BackendFacts]
) -> mc.ModelConfig:
    """Return a copy with `backend`, `platform` and `default_model_filename` filled in where they are known.

    Platform and backend decide first, then `default_model_filename`, then the files, then a model name of
    the form `<anything>.<backend>`, then a single file `model.<backend>` (the last is not Triton's).

    Args:
        config: `name` must be set.
        listing: names in the model's first version directory, those of directories with a "/" at the end.
        backends: those there are, in the order in which Triton looks for their files.

    Raises:
        InferError: INVALID_ARG when the backend cannot be inferred.
    """
    result = copied(config)
    if result.HasField("ensemble_scheduling") and not result.platform and not result.backend:
        result.platform = ENSEMBLE
    if result.platform == ENSEMBLE:
        return result
    known = _known_format(result, listing, backends)
    if known is not None:
        _fill(result, *known)
    elif not (result.backend or result.platform or result.default_model_filename):
        result.backend = _custom_backend(result.name, listing)
        result.default_model_filename = f"model.{result.backend}"
    return result


def _known_format(
    config: mc.ModelConfig, listing: Collection[str], backends: Sequence[BackendFacts]
) -> tuple[BackendFacts, ModelFormat] | None:
    formats = ((backend, each) for backend in backends for each in backend.formats)
    known = [row for row in formats if _may_be(config, *row)]
    platform = config.platform
    if platform in platforms(backends):
        return next((row for row in known if platform in (row[1].platform, row[1].old_platform)), None)
    listed = next((row for row in known if _is_listed(row[1], listing)), None)
    # Triton takes the first whatever the files, and would look for model.pt where there is only model.pt2.
    if config.backend and all(backend.first_by_default for backend, _ in known):
        return listed or (known[0] if known else None)
    if config.default_model_filename:
        return next((row for row in known if row[1].file_name == config.default_model_filename), None)
    return None if platform else listed


def _may_be(config: mc.ModelConfig, backend: BackendFacts, form: ModelFormat) -> bool:
    return config.backend == backend.name or not (config.backend or form.named_only)


def _is_listed(form: ModelFormat, listing: Collection[str]) -> bool:
    as_file = form.directory is not True and form.file_name in listing
    return as_file or (form.directory is not False and form.file_name + "/" in listing)


def _fill(config: mc.ModelConfig, backend: BackendFacts, form: ModelFormat) -> None:
    named = not form.named_for_backend or bool(config.backend and not config.platform)
    config.backend = config.backend or backend.name
    config.platform = config.platform or form.platform
    if named and config.runtime != _PYTHON_FILE:  # such a model chooses among several files
        config.default_model_filename = config.default_model_filename or form.file_name


def _custom_backend(model: str, listing: Collection[str]) -> str:
    _, dot, backend = model.partition(".")
    if dot:
        return str(backend)
    files = [name for name in listing if name.startswith("model.") and not name.endswith("/")]
    if len(files) == 1:
        return files[0].removeprefix("model.")
    raise invalid_arg(
        f"Invalid model name: Could not determine backend for model '{model}' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )


def normalise(
    config: mc.ModelConfig,
    backend: BackendFacts,
    gpus: Sequence[int] = (),
    preferred: Sequence[mc.ModelInstanceGroup] = (),
) -> mc.ModelConfig:
    """Return a copy with Triton's defaults filled in; idempotent.

    Args:
        config: with `name`, and `backend` or `platform`, already filled.
        backend: what is known of its backend.
        gpus: CUDA ordinals this server may use; without any, KIND_AUTO means KIND_CPU.
        preferred: the instance groups that the backend prefers.

    Raises:
        InferError: INVALID_ARG for more than `MAX_INSTANCES`.
    """
    result = without_instances(config)
    if not result.HasField("ensemble_scheduling"):
        _default_instances(result, backend, gpus, preferred)
    return result


def without_instances(config: mc.ModelConfig) -> mc.ModelConfig:
    """Return a copy with Triton's defaults but for the instance groups, which only the backend can tell."""
    result = copied(config)
    if not result.HasField("version_policy"):
        result.version_policy.latest.num_versions = 1
    _default_batching(result)
    if not result.HasField("ensemble_scheduling"):
        _default_pinned_memory(result.optimization)
    return result


def _default_batching(config: mc.ModelConfig) -> None:
    largest = [config.max_batch_size] if config.max_batch_size > 0 else []
    if config.HasField("dynamic_batching") and not config.dynamic_batching.preferred_batch_size:
        config.dynamic_batching.preferred_batch_size.extend(largest)
    if not config.HasField("sequence_batching"):
        return
    sequence = config.sequence_batching
    if not sequence.max_sequence_idle_microseconds:
        sequence.max_sequence_idle_microseconds = SEQUENCE_IDLE_DEFAULT_US
    if sequence.HasField("oldest") and not sequence.oldest.preferred_batch_size:
        sequence.oldest.preferred_batch_size.extend(largest)


def _default_pinned_memory(optimization: mc.ModelOptimizationPolicy) -> None:
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if not optimization.HasField(name):
            getattr(optimization, name).enable = True


def _default_instances(
    config: mc.ModelConfig,
    backend: BackendFacts,
    gpus: Sequence[int],
    preferred: Sequence[mc.ModelInstanceGroup],
) -> None:
    if not config.instance_group:
        config.instance_group.append(_default_group(config.name, gpus, preferred))
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == _Group.KIND_AUTO:
            group.kind = _automatic_kind(group, gpus if backend.uses_gpus else ())
        for other in preferred:
            _complete_group(group, other, gpus)
        if group.count < 1:
            group.count = backend.instances_on_cpu if group.kind == _Group.KIND_CPU else 1
        if group.kind == _Group.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
    instances = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    if instances > MAX_INSTANCES:
        raise invalid_arg(
            f"instance groups of model '{config.name}' ask for {instances} instances, "
            f"at most {MAX_INSTANCES} are possible"
        )


def _default_group(
    name: str, gpus: Sequence[int], preferred: Sequence[mc.ModelInstanceGroup]
) -> mc.ModelInstanceGroup:
    """Return the group of a model that declares none: the first preferred one whose devices are here."""
    usable = (each for each in preferred if each.kind != _Group.KIND_GPU or gpus)
    chosen = next(usable, _Group())
    devices = {_Group.KIND_AUTO: chosen.gpus, _Group.KIND_GPU: _present(chosen, gpus)}
    return _Group(name=name, kind=chosen.kind, count=chosen.count, gpus=devices.get(chosen.kind, ()))


def _complete_group(
    group: mc.ModelInstanceGroup, preferred: mc.ModelInstanceGroup, gpus: Sequence[int]
) -> None:
    """Give a group without devices or count those of a preferred one of its kind."""
    if group.kind != preferred.kind:
        return
    if group.kind == _Group.KIND_GPU and preferred.gpus and not group.gpus:
        group.gpus.extend(_present(preferred, gpus))
        if not group.gpus:
            return
    group.count = group.count if group.count > 0 else preferred.count


def _present(group: mc.ModelInstanceGroup, gpus: Sequence[int]) -> list[int]:
    return [gpu for gpu in group.gpus if gpu in gpus]


def _automatic_kind(group: mc.ModelInstanceGroup, gpus: Sequence[int]) -> int:
    usable = bool(gpus) and set(group.gpus) <= set(gpus)
    return int(_Group.KIND_GPU if usable else _Group.KIND_CPU)
