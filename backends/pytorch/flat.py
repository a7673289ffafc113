"""Programs that take and return the leaves of a call: exported programs and AOTInductor packages."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import dims_text
from app.core.errors import InferError, internal, invalid_arg
from backends.base import Instance
from backends.declared import declared_dims
from backends.pytorch.call_spec import argument_paths, input_order, output_places, result_paths
from backends.pytorch.tensors import check_dtypes

_SHAPES: Final = 1024
"""How many combinations of shapes are remembered as fitting."""


class Program(ABC):
    """What a file holds; instances may share it.

    Attributes:
        failure: how a failed execution is reported, with `{}` for the instance's name.
        arguments, results: paths of the leaves, as in `call_spec`.
        dtypes: torch.dtype of each argument; None for one that is not known.
        shapes: of each argument, -1 for a size that varies; None for one that is not known.
    """

    failure = "PyTorch execute failure"

    def __init__(self, arguments: str, results: str, dtypes: Sequence[Any]) -> None:
        self.arguments = argument_paths(arguments)
        self.results = result_paths(results)
        self.dtypes = dtypes
        self.shapes: Sequence[tuple[int, ...] | None] = [None] * len(self.arguments)

    @abstractmethod
    def run_checked(self, leaves: list[Any]) -> Sequence[Any]:
        """Run with inputs of shapes that were not seen before.

        Raises:
            Misfit: the program was not made for these shapes.
            Exception: the program's own.
        """

    @abstractmethod
    def run(self, leaves: list[Any]) -> Sequence[Any]:
        """Run with inputs of shapes that fit."""

    def example(self) -> list[Any]:
        """Return inputs for a first run, in CPU memory; none if they are not known."""
        return []


class Misfit(Exception):
    """Inputs that a program was not made for; the text is a condition that they do not meet."""


class FlatProgram:
    """A program with the configuration's names for its leaves; used by one instance.

    Attributes:
        outputs: position of each output among the results.
    """

    def __init__(self, program: Program, instance: Instance) -> None:
        config = instance.model.config
        self.program = program
        self._order = input_order(config, program.arguments, instance.name)
        self.outputs = output_places(config, program.results, instance.name)
        check_dtypes(config, self._order, program.dtypes)
        _check_shapes(config, dict(zip(self._order, program.shapes, strict=True)))
        self._failure = program.failure.format(instance.name)
        self._model = config.name
        self._fitting: set[tuple[torch.Size, ...]] = set()

    def run(self, tensors: Mapping[str, Any]) -> Sequence[Any]:
        """Return the leaves of the result, in order.

        Raises:
            InferError: INVALID_ARG for shapes that the program was not made for, INTERNAL with its message.
        """
        return self._run([tensors[name] for name in self._order])

    def warm_up(self, device: torch.device) -> None:
        """Run once with example inputs, if there are any; raises as `run`."""
        if leaves := self.program.example():
            self._run([leaf.to(device) for leaf in leaves])

    def _run(self, leaves: list[Any]) -> Sequence[Any]:
        shapes = tuple([leaf.shape for leaf in leaves])
        try:
            if shapes in self._fitting:
                return self.program.run(leaves)
            results = self.program.run_checked(leaves)
        except Misfit as misfit:
            given = ", ".join(f"'{n}' {list(shape)}" for n, shape in zip(self._order, shapes, strict=True))
            raise invalid_arg(
                f"model '{self._model}' was exported for inputs with {misfit}, got {given}"
            ) from misfit
        except InferError:
            raise
        except Exception as error:
            raise internal(f"{self._failure}: {first_line(error)}") from error
        if len(self._fitting) >= _SHAPES:
            self._fitting.clear()
        self._fitting.add(shapes)
        return results


def _check_shapes(config: mc.ModelConfig, shapes: Mapping[str, tuple[int, ...] | None]) -> None:
    """Refuse declared dims of which every request would be refused."""
    for tensor in config.input:
        shape = shapes.get(tensor.name)
        dims = (*([-1] if config.max_batch_size else []), *declared_dims(tensor))
        if not shape or tensor.allow_ragged_batch:
            continue
        fits = [size in (-1, dim) or dim == -1 for size, dim in zip(shape, dims, strict=False)]
        if len(shape) != len(dims) or not all(fits):
            raise invalid_arg(
                f"unable to load model '{config.name}', configuration expects shape {dims_text(dims)} for"
                f" input '{tensor.name}', model provides {dims_text(shape)}"
            )


def first_line(error: Exception) -> str:
    """Return the first line of an error: PyTorch's C++ code puts its stack behind it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
