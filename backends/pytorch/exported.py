"""Exported programs (`torch.export.save`): graphs of PyTorch's operators, without Python code.

Calling the module of such a program takes longer than the operators of a small one: its guards compare the
shapes, and the arguments are taken out of their tuples and dictionaries. So only inputs of new shapes go
through the module; the rest run its graph, which takes the tensors themselves.
"""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils import _pytree

from app.core.errors import InferError, internal, invalid_arg
from backends.base import Model
from backends.load_locks import loading
from backends.pytorch.flat import Misfit, Program, first_line
from backends.pytorch.pickles import refused

_GUARDS: Final = "_guards_fn"
_NEWER_GUARD: Final = "Guard failed: "
_OLDER_GUARD: Final = "Expected input at "
_OPAQUE: Final = "opaque_obj_"
"""How files of constants begin that PyTorch reads by Python's pickle."""


class Exported(Program):
    """A module that runs an exported program."""

    def __init__(self, program: Any) -> None:
        spec = program.call_spec
        self._in_spec = spec.in_spec
        placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        values = [placeholders[name].meta.get("val") for name in program.graph_signature.user_inputs]
        super().__init__(
            _pytree.treespec_dumps(spec.in_spec),
            _pytree.treespec_dumps(spec.out_spec),
            [value.dtype if isinstance(value, torch.Tensor) else None for value in values],
        )
        self.shapes = [_sizes(value) for value in values]
        self._examples = program.example_inputs
        self._module: Any = program.module()
        self._flat = _flat(self._module)

    @staticmethod
    def open(path: Path, model: Model, device: torch.device | None) -> "Exported":
        """Return the program of a file on a device; None keeps the devices that the file names.

        Raises:
            InferError: INVALID_ARG for a file with pickled objects, INTERNAL with PyTorch's message.
        """
        try:
            _refuse_pickles(path)
            program = torch.export.load(path)
            return Exported(program if device is None else _moved(program, device))
        except InferError:
            raise
        except zipfile.BadZipFile as error:
            raise internal(f"failed to load model '{model.name}': '{path}' is damaged: {error}") from error
        except Exception as error:
            if fault := refused(error):
                raise invalid_arg(f"failed to load model '{model.name}': {fault}") from error
            raise internal(
                f"failed to load model '{model.name}': {first_line(error)} (an exported program is read by"
                f" the PyTorch that wrote it or a newer one; this is {torch.__version__})"
            ) from error

    def run_checked(self, leaves: list[Any]) -> Sequence[Any]:
        args, kwargs = _pytree.tree_unflatten(leaves, self._in_spec)
        try:
            result = self._module(*args, **kwargs)
        except (AssertionError, RuntimeError) as error:
            condition = _condition(str(error))
            if not condition:
                raise
            raise Misfit(condition) from error
        return _pytree.tree_leaves(result)

    def run(self, leaves: list[Any]) -> Sequence[Any]:
        results: Sequence[Any] = self._flat(*leaves)
        return results

    def example(self) -> list[Any]:
        return [] if self._examples is None else _pytree.tree_leaves(self._examples)


def signature(path: Path) -> tuple[list[Any], list[Any]]:
    """Return the tensors, without values, that the program of a file takes and returns.

    Dimensions that may vary are no `int`.

    Raises:
        InferError: as of `Exported.open`.
    """
    try:
        _refuse_pickles(path)
        with loading("torch"):
            program = torch.export.load(path)
    except InferError:
        raise
    except Exception as error:
        raise internal(f"'{path}' cannot be read: {first_line(error)}") from error
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = program.graph_signature.user_inputs, program.graph_signature.user_outputs
    given, returned = ([values.get(str(name)) for name in own] for own in names)
    return given, returned


def _sizes(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, torch.Tensor):
        return None
    return tuple(size if isinstance(size, int) else -1 for size in value.shape)


def _flat(module: Any) -> Any:
    """Return a module with the same operators, weights and buffers, of leaves and without guards."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.find_nodes(op="call_module", target=_GUARDS):
        graph.erase_node(node)
    return torch.fx.GraphModule(module, graph)


def _moved(program: Any, device: torch.device) -> Any:
    tensors = (*program.state_dict.values(), *program.constants.values())
    if device.type == "cpu" and all(tensor.is_cpu for tensor in tensors if isinstance(tensor, torch.Tensor)):
        return program
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(program, device)


def _condition(text: str) -> str:
    """Return the condition that the inputs do not meet; "" for another failure than a guard's."""
    line = text.partition("\n")[0]
    if line.startswith(_NEWER_GUARD):
        return line.removeprefix(_NEWER_GUARD)
    return line.removeprefix("Expected ") if line.startswith(_OLDER_GUARD) else ""


def _refuse_pickles(path: Path) -> None:
    """Refuse what PyTorch would read by Python's pickle, which executes code.

    Weights, constants and example inputs are read with `weights_only`; see `TorchBackend.initialize`.
    """
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith("_constants_config.json"):
                continue
            files = [entry["path_name"] for entry in json.loads(archive.read(name))["config"].values()]
            if any(file.startswith(_OPAQUE) for file in files):
                raise invalid_arg(
                    f"'{path.name}' has pickled Python objects among its constants, which are not loaded:"
                    " export the program without them"
                )
