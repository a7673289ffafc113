"""Says in words how the inputs and outputs of two configurations of a model differ. Pure."""

from collections.abc import Iterator

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import TensorSpec, input_specs, output_specs


def differences(before: mc.ModelConfig, after: mc.ModelConfig) -> str:
    """Return what clients of the first would notice of the second; "" for nothing."""
    return ", ".join(
        (
            *_tensors("input", input_specs(before), input_specs(after)),
            *_tensors("output", output_specs(before), output_specs(after)),
            *_batches(before.max_batch_size, after.max_batch_size),
        )
    )


def _batches(before: int, after: int) -> Iterator[str]:
    if after < before:
        yield f"max_batch_size is {after} instead of {before}"


def _tensors(kind: str, before: tuple[TensorSpec, ...], after: tuple[TensorSpec, ...]) -> Iterator[str]:
    old, new = ({spec.name: spec for spec in specs} for specs in (before, after))
    for name in sorted(old.keys() - new.keys()):
        yield f"no {kind} '{name}'"
    for name in sorted(new):
        if name not in old:
            yield f"a new {'optional ' if new[name].optional else ''}{kind} '{name}'"
        elif _form(new[name]) != _form(old[name]):
            yield f"{kind} '{name}' is {_form(new[name])} instead of {_form(old[name])}"
        elif old[name].optional and not new[name].optional:
            yield f"{kind} '{name}' is required"


def _form(spec: TensorSpec) -> str:
    return f"{spec.datatype} {list(spec.dims)}"
