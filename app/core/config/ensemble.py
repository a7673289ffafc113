"""Checks of `ensemble_scheduling` that need no other model: the steps and the tensors between them.

Texts are those of ValidateEnsembleSchedulingConfig in Triton's core (src/model_config_utils.cc), misplaced
quotes included. Triton walks unordered maps; here tensors come in the order in which the steps name them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import ENSEMBLE
from app.core.errors import InferError, invalid_arg

_WHEN: Final = re.compile(r"step\.(?P<index>\d{1,6})\.when")


class Condition(NamedTuple):
    """A BOOL ensemble tensor that decides whether a step runs: any element true, none if negated."""

    tensor: str
    negated: bool


def conditions(config: mc.ModelConfig) -> dict[int, Condition]:
    """Return the conditions of an ensemble's steps, by index; not in Triton.

    A step runs only sometimes when `parameters` has a key `step.<index>.when` with the name of a BOOL
    ensemble tensor, or that name behind a "!". The outputs of a step that did not run are absent, as are
    those of steps that require one of them; an optional input is left out instead.

    Raises:
        InferError: INVALID_ARG for a step that does not exist.
    """
    found: dict[int, Condition] = {}
    for key, value in config.parameters.items():
        match = _WHEN.fullmatch(key)
        if match is None:
            continue
        index = int(match["index"])
        if index >= len(config.ensemble_scheduling.step):
            raise invalid_arg(f"parameter '{key}' of ensemble '{config.name}' names a step there is not")
        text = value.string_value
        found[index] = Condition(text.removeprefix("!"), text.startswith("!"))
    return found


@dataclass(eq=False)
class _Tensor:
    """An ensemble tensor: written by at most one step, ready when all tensors that the step reads are."""

    name: str
    written: bool = False
    ready: bool = False
    sources: list["_Tensor"] = field(default_factory=list)
    targets: list["_Tensor"] = field(default_factory=list)


def validate_ensemble(config: mc.ModelConfig) -> None:
    """Check an ensemble's configuration on its own.

    Raises:
        InferError: INVALID_ARG for a field not allowed in an ensemble, an incomplete step, or a tensor that
            is written twice, never written, or never used.
    """
    _check_fields(config)
    tensors = _build_graph(config)
    for tensor in config.input:
        if tensor.name not in tensors:
            raise invalid_arg(f"ensemble input '{tensor.name}' for ensemble {config.name}' is not used")
    _mark_ready({tensor.name: tensors[tensor.name] for tensor in config.input}.values())
    for output in config.output:
        if output.name not in tensors:
            raise invalid_arg(f"ensemble output '{output.name}' for ensemble {config.name}' is not used")
        if not tensors[output.name].ready:
            raise _not_written(tensors[output.name], config.name)
    outputs = {output.name for output in config.output}
    for tensor in tensors.values():
        if tensor.name not in outputs and not (tensor.ready and tensor.targets):
            raise invalid_arg(f"ensemble tensor '{tensor.name}' is unused in ensemble '{config.name}'")


def _check_fields(config: mc.ModelConfig) -> None:
    name = config.name
    if config.platform != ENSEMBLE:
        raise invalid_arg(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
        )
    if config.instance_group:
        raise invalid_arg(f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        raise invalid_arg(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise invalid_arg(f"model_warmup can not be specified for ensemble '{name}'")
    if not config.ensemble_scheduling.step:
        raise invalid_arg(f"must specify 'step' for ensemble '{name}'")


def _build_graph(config: mc.ModelConfig) -> dict[str, _Tensor]:
    tensors: dict[str, _Tensor] = {}
    when = conditions(config)
    for index, step in enumerate(config.ensemble_scheduling.step):
        for required in ("model_name", "input_map", "output_map"):
            if not getattr(step, required):
                raise invalid_arg(f"must specify '{required}' in step {index} of ensemble '{config.name}'")
        written = [_write(tensors, name, index, config.name) for _, name in sorted(step.output_map.items())]
        read = [name for _, name in sorted(step.input_map.items())]
        for name in (*read, when[index].tensor) if index in when else read:
            source = tensors.setdefault(name, _Tensor(name))
            source.targets.extend(written)
            for target in written:
                target.sources.append(source)
    return tensors


def _write(tensors: dict[str, _Tensor], name: str, step: int, ensemble: str) -> _Tensor:
    tensor = tensors.setdefault(name, _Tensor(name))
    if tensor.written:
        raise invalid_arg(
            f"ensemble tensor '{name}' can appear in an output map only once for ensemble '{ensemble}' "
            f"step {step}"
        )
    tensor.written = True
    return tensor


def _mark_ready(inputs: Iterable[_Tensor]) -> None:
    """Mark the inputs and all tensors that can be computed from them."""
    queue = list(inputs)
    for tensor in queue:
        tensor.ready = True
    missing: dict[_Tensor, int] = {}
    while queue:
        for target in queue.pop().targets:
            missing[target] = missing.get(target, len(target.sources)) - 1
            if missing[target] == 0 and not target.ready:
                target.ready = True
                queue.append(target)


def _not_written(output: _Tensor, ensemble: str) -> InferError:
    """Return the error that names the first unconnected tensor an output depends on."""
    text = f"output '{output.name}' for ensemble '{ensemble}' is not written"
    seen: set[str] = set()
    last = output
    while unready := [tensor for tensor in last.sources if not tensor.ready and tensor.name not in seen]:
        last = unready[0]
        seen.add(last.name)
    if last is not output:
        text += f": at least one of its depending tensors, '{last.name}', is not connected"
    return invalid_arg(text)
