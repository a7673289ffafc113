"""Names of the tensors of a compiled or exported program, by their place in the call.

PyTorch stores how such a program is called as two descriptions in JSON, of its arguments and of its result:
trees of tuples, lists and dictionaries with tensors as leaves. A tensor is named by its position among the
leaves, `INPUT__<i>` and `OUTPUT__<i>`, or by its path: `ARGS[0]`, `ARGS[2][key]`, `KWARGS[name]`, and
`RESULT` for a single tensor, else `RESULT[0]`, `RESULT[key][0]`. Rules and texts are those of Triton's
pytorch backend for `platform: "torch_aoti"`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import internal

_SEQUENCES: Final = ("builtins.tuple", "builtins.list")
_DICTIONARY: Final = "builtins.dict"


def argument_paths(specification: str) -> list[str]:
    """Return the path of each argument, in the order of the leaves.

    Raises:
        InferError: INTERNAL for anything but tensors in tuples, lists and dictionaries.
    """
    tree = _root(specification)
    children = tree.get("children_spec", [])
    if [child.get("type") for child in children] != ["builtins.tuple", _DICTIONARY]:
        raise internal("Unexpected input call specification structure: expected tuple[tuple, dict].")
    positional, named = children
    return [f"ARGS{path}" for path in _paths(positional)] + [f"KWARGS{path}" for path in _paths(named)]


def result_paths(specification: str) -> list[str]:
    """Return the path of each tensor of the result, in the order of the leaves; raises as above."""
    return [f"RESULT{path}" for path in _paths(_root(specification))]


def input_order(config: mc.ModelConfig, paths: Sequence[str], instance: str) -> list[str]:
    """Return the tensor of the configuration that each argument is.

    Args:
        config: its inputs, controls, state inputs and batch inputs are named as described above.
        paths: of the program's arguments.
        instance: the instance's name, for errors.

    Raises:
        InferError: INTERNAL when counts or names do not fit.
    """
    sequence = config.sequence_batching
    names = [tensor.name for tensor in config.input]
    names += [control.name for control in sequence.control_input]
    names += [state.input_name for state in sequence.state]
    names += [name for batch_input in config.batch_input for name in batch_input.target_name]
    if len(names) != len(paths):
        raise internal(
            f'Failed to load model "{instance}" configuration expects {len(names)} inputs, but model expects'
            f" {len(paths)} inputs."
        )
    places = _places("INPUT", paths)
    by_place = {_place("Input", name, places, instance): name for name in names}
    missing = [paths[place] for place in range(len(paths)) if place not in by_place]
    if missing:
        raise internal(f'Model instance "{instance}" has no input for {", ".join(missing)}.')
    return [by_place[place] for place in range(len(paths))]


def output_places(config: mc.ModelConfig, paths: Sequence[str], instance: str) -> dict[str, int]:
    """Map each output and output state of the configuration to a leaf of the result.

    Raises:
        InferError: INTERNAL without outputs, or for a name that is none of the result's.
    """
    names = [tensor.name for tensor in config.output]
    if not names:
        raise internal(
            f'Configuration for model "{config.name}" must define at least one output, none were specified.'
        )
    names += [state.output_name for state in config.sequence_batching.state]
    places = _places("OUTPUT", paths)
    return {name: _place("Output", name, places, instance) for name in names}


def _root(specification: str) -> dict[str, Any]:
    """Return the tree in `[version, tree]`."""
    try:
        _, tree = json.loads(specification)
    except (ValueError, TypeError) as error:
        raise internal(f"Failed to parse the call specification '{specification}': {error}") from error
    return dict(tree)


def _paths(node: Mapping[str, Any]) -> list[str]:
    """Return the paths of the leaves below a node, "" for a leaf itself."""
    kind = node.get("type")
    if kind is None:
        return [""]
    children = node.get("children_spec", [])
    if kind == _DICTIONARY:
        context = node.get("context") or "[]"
        keys: Sequence[Any] = json.loads(context) if isinstance(context, str) else context
    elif kind in _SEQUENCES:
        keys = range(len(children))
    else:
        raise internal(f"Value of `type` property ('{kind}') is unsupported.")
    return [f"[{key}]{path}" for key, child in zip(keys, children, strict=True) for path in _paths(child)]


def _places(prefix: str, paths: Sequence[str]) -> dict[str, int]:
    named = {path: place for place, path in enumerate(paths)}
    return named | {f"{prefix}__{place}": place for place in range(len(paths))}


def _place(kind: str, name: str, places: Mapping[str, int], instance: str) -> int:
    if name not in places:
        known = ", ".join(f'"{known}"' for known in places)
        raise internal(
            f'{kind} "{name}" for model instance "{instance}" is not found in model {kind.lower()} map.'
            f" It has {known}."
        )
    return places[name]
