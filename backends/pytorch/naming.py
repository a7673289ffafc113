"""Mapping of a configuration's tensors to arguments and results of a TorchScript model.

Inputs are named like the arguments of `forward`, or `<name>__<index>`; if neither holds for all of them,
they have the order of the configuration. Outputs are `<name>__<index>`, or have that order too. The rules
and texts are those of Triton's pytorch backend.
"""

import logging
import re
from collections.abc import Sequence
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import internal, invalid_arg

logger = logging.getLogger(__name__)

_FALLBACK: Final = {
    "input": "input '%s' or previous input(s) are neither an input argument to the model '%s' nor do they",
    "output": "output '%s' or previous output(s) of the model '%s' do not",
}


def input_arguments(config: mc.ModelConfig, arguments: Sequence[str]) -> dict[str, str]:
    """Map each input, control and state of the configuration to an argument of `forward`.

    Raises:
        InferError: INVALID_ARG or INTERNAL when counts or names do not fit.
    """
    names = [tensor.name for tensor in config.input]
    indices = {
        control.name: _control_index(control.name) for control in config.sequence_batching.control_input
    }
    states = [state.input_name for state in config.sequence_batching.state]
    made = [name for batch_input in config.batch_input for name in batch_input.target_name]
    count = len(names) + len(indices) + len(states) + len(made)
    if count != len(arguments):
        raise invalid_arg(
            f"unable to load model '{config.name}', configuration expects {count} inputs, model provides"
            f" {len(arguments)}"
        )
    if not names:
        raise internal("model configuration must contain at least one input, none were specified.")
    if all(name in arguments for name in names) and not states:
        indices |= {name: arguments.index(name) for name in names}
    else:
        indices |= _indices(config, "input", names)
    _check_states(config, states, names)
    indices |= {name: _state_index(config, name) for name in states}
    indices |= _made_indices(made, names, arguments)
    return {name: _argument(config, arguments, name, index) for name, index in indices.items()}


def output_indices(config: mc.ModelConfig) -> dict[str, int]:
    """Map each output and state of the configuration to the position of a result.

    Raises:
        InferError: INVALID_ARG or INTERNAL when there are no outputs, or states are not named by index.
    """
    names = [tensor.name for tensor in config.output]
    if not names:
        raise internal("model configuration must contain at least one output, none were specified.")
    states = [state.output_name for state in config.sequence_batching.state]
    indices = _indices(config, "output", names)
    _check_states(config, states, names)
    return indices | {name: _state_index(config, name) for name in states}


def _indices(config: mc.ModelConfig, direction: str, names: Sequence[str]) -> dict[str, int]:
    """Return the indices in the names, or else those of the configuration's order."""
    for name in names:
        if _index(name) is not None:
            continue
        if "__" in name:
            logger.warning(
                f"{_FALLBACK[direction]} follow the <name>__<index> naming convention. Falling back to"
                " enforcing strict ordering from model configuration.",
                name,
                config.name,
            )
        return {name: position for position, name in enumerate(names)}
    return {name: _index(name) or 0 for name in names}


def _made_indices(made: Sequence[str], names: Sequence[str], arguments: Sequence[str]) -> dict[str, int]:
    """Return the indices of batch inputs: named as the inputs are, or after them in order."""
    every = (*names, *made)
    if all(name in arguments for name in every):
        return {name: arguments.index(name) for name in made}
    if all(_index(name) is not None for name in every):
        return {name: _index(name) or 0 for name in made}
    return {name: len(names) + position for position, name in enumerate(made)}


def _index(name: str) -> int | None:
    """Return the number behind the first "__", 0 for an empty one; None for a name without it."""
    start = name.find("__")
    if start < 0:
        return None
    digits = name[start + 2 :]
    return int(digits or "0") if re.fullmatch(r"[0-9]*", digits) else None


def _control_index(name: str) -> int:
    index = _index(name)
    if index is None:
        raise internal(f"input '{name}' does not follow <name>__<index> naming convention.")
    return index


def _state_index(config: mc.ModelConfig, name: str) -> int:
    index = _index(name)
    if index is None:
        raise invalid_arg(
            f"PyTorch model '{config.name}' is using sequence batching with state but state '{name}' does"
            " not follow the <name>__<index> naming convention. "
        )
    return index


def _check_states(config: mc.ModelConfig, states: Sequence[str], names: Sequence[str]) -> None:
    if states and any(_index(name) is None for name in names):
        raise invalid_arg(
            f"PyTorch model '{config.name}' is using sequence batching with state but not all inputs and"
            " outputs follow the <name>__<index> naming convention. "
        )


def _argument(config: mc.ModelConfig, arguments: Sequence[str], name: str, index: int) -> str:
    if index >= len(arguments):
        raise invalid_arg(
            f"unable to load model '{config.name}', input '{name}' refers to argument {index} but the model"
            f" has {len(arguments)} arguments"
        )
    return arguments[index]
