"""Runs of a session with small tensors, in memory that is bound to the session once and not for each run.

`session.run` makes a value of each input and an array of each output, which for 16 numbers costs as much as
the run itself, and more with the arrays that are made of a request and read for its response.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from app.core.tensors import SMALL, Tensor
from backends.signature import Signature

Array = npt.NDArray[Any]
Key = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of the inputs, in the order of the request."""

_MOST: Final = 64
"""Combinations of shapes that are bound: the batch sizes of a model, with a reserve."""
_SHAPE: Final = attrgetter("shape")
_KEY: Final = attrgetter("name", "shape")


class _Bound:
    """Memory of one combination of shapes; `places` and the last item of each output are bytes of it."""

    def __init__(
        self,
        session: ort.InferenceSession,
        options: ort.RunOptions | None,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        binding = session.io_binding()
        self.inputs = [_like(array) for array in inputs.values()]
        self.outputs = {name: _like(array) for name, array in outputs.items()}
        self.places = [_bytes(array) for array in self.inputs]
        for name, array in zip(inputs, self.inputs, strict=True):
            binding.bind_input(name, *_place(array))
        for name, array in self.outputs.items():
            binding.bind_output(name, *_place(array))
        self.run = _run_of(session, binding, options)
        self.answer: list[tuple[str, str, tuple[int, ...], memoryview]] = []


class BoundRuns:
    """Runs of one instance on a CPU, which follow each other.

    Args:
        session: a session on the CPU whose tensors are numeric.
        options: of each run.
        signature: the model's tensors.

    Attributes:
        failed: a run raised an exception, and its inputs are to be given to `session.run`. If that raises one
            too, it is the model's own, and the caller resets this.
    """

    def __init__(
        self, session: ort.InferenceSession, options: ort.RunOptions | None, signature: Signature
    ) -> None:
        self._session = session
        self._options = options
        self._signature = signature
        self._bound: dict[Key, _Bound] = {}
        self._varies = False
        self.failed = False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return all outputs, which the next run overwrites; None where this combination is not bound."""
        bound = self._bound.get(tuple(zip(inputs, map(_SHAPE, inputs.values()), strict=True)))
        if bound is None or self.failed:
            return None
        for place, array in zip(bound.inputs, inputs.values(), strict=True):
            place[...] = array
        return bound.outputs if self._runs(bound) else None

    def answer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return the outputs for a request of valid tensors; None where this combination is not bound."""
        bound = self._bound.get(tuple(map(_KEY, inputs)))
        if bound is None:
            return None
        try:
            for place, tensor in zip(bound.places, inputs):  # noqa: B905  (as many, by the key)
                place[:] = tensor.data
        except ValueError:  # no plain bytes
            return None
        if not self._runs(bound):
            return None
        outputs: tuple[Tensor, ...] = ()
        for name, datatype, shape, data in bound.answer:
            outputs += (Tensor(name, datatype, shape, data.tobytes()),)
        return outputs

    def _runs(self, bound: _Bound) -> bool:
        try:
            bound.run()
        except Exception:
            self.failed = True
        return not self.failed

    def learn(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Bind the shapes of a `session.run`, if it returned all outputs, and all tensors are small."""
        if self.failed:  # then the shapes of its outputs follow from more than the shapes of its inputs
            self.failed, self._varies = False, True
            self._bound.clear()
        arrays = (*inputs.values(), *outputs.values())
        if self._varies or len(self._bound) >= _MOST or not all(map(_is_small, arrays)):
            return
        listed = self._signature.outputs
        if all(output.name in outputs and outputs[output.name].dtype == output.dtype for output in listed):
            key = tuple(zip(inputs, map(_SHAPE, inputs.values()), strict=True))
            bound = self._bound[key] = _Bound(self._session, self._options, inputs, outputs)
            kept = [(output, bound.outputs[output.name]) for output in listed]
            bound.answer = [
                (output.name, output.datatype, array.shape, _bytes(array)) for output, array in kept
            ]


def _is_small(array: object) -> bool:
    return isinstance(array, np.ndarray) and 0 < array.nbytes <= SMALL


def _like(array: Array) -> Array:
    return np.empty_like(array, order="C", subok=False)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _place(array: Array) -> tuple[str, int, Any, tuple[int, ...], int]:
    return "cpu", 0, array.dtype.type, array.shape, array.ctypes.data


def _run_of(
    session: ort.InferenceSession, binding: ort.IOBinding, options: ort.RunOptions | None
) -> Callable[[], object]:
    """Return the run of a binding, without checks that concern other devices where that is possible."""
    direct = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
    inner = getattr(binding, "_iobinding", None)
    if direct is None or inner is None:
        return partial(session.run_with_iobinding, binding, options)
    return partial(direct, inner, options)
