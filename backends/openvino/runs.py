"""Executions of a compiled model by one instance."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from app.core.errors import InferError, internal, invalid_arg
from backends.openvino.runtime import explained

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]


class Runs:
    """An infer request of a compiled model. Inputs are read where they lie; outputs are copies.

    Args:
        compiled: the model, which other instances may share.
        rows: the number of rows that an execution must have; 0 for any number.
        pads: whether fewer rows are filled up with zeros; otherwise they are refused.
        batched: whether outputs must have as many rows as inputs.
    """

    def __init__(
        self, compiled: ov.CompiledModel, rows: int = 0, pads: bool = True, batched: bool = False
    ) -> None:
        request = compiled.create_infer_request()
        # `InferRequest.infer` examines and copies what it is given, which costs as much as a small model.
        self._infer: Any = super(ov.InferRequest, request).infer  # type: ignore[misc]  # stubs lack it
        self._reset = request.reset_state if request.query_state() else None
        self._inputs = {
            name: (index, port.get_element_type())
            for index, port in enumerate(compiled.inputs)
            for name in port.get_names()
        }
        self._outputs = {
            name: index for index, port in enumerate(compiled.outputs) for name in port.get_names()
        }
        self._ports = compiled.inputs
        self._rows, self._pads, self._batched = rows, pads, batched

    def run(self, feed: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Execute once.

        Args:
            feed: all inputs, C-contiguous, by name.
            outputs: names of the outputs to return.

        Raises:
            InferError: INVALID_ARG for a missing input, INTERNAL when the model fails, or returns another
                number of rows.
        """
        if len(feed) != len(self._ports):  # the request would read what an earlier one left
            names = ", ".join(port.get_any_name() for port in self._ports)
            raise invalid_arg(f"expected all inputs of the model: {names}")
        count = len(next(iter(feed.values()))) if self._batched else 0
        if self._rows and count != self._rows:
            feed = self._padded(feed, count)
        tensors = {}
        for name, array in feed.items():
            index, kind = self._inputs[name]
            # Given a shape and a type, a tensor views the array, also one that may not be written to.
            tensors[index] = ov.Tensor(array, array.shape, kind)
        try:
            if self._reset is not None:  # variables of a stateful model belong to no client
                self._reset()
            results = list(self._infer(tensors, True, False).values())
        except Exception as error:
            raise explained("running inference", error) from error
        return {name: self._copy(results[self._outputs[name]], count) for name in outputs}

    def _copy(self, result: Array, count: int) -> Array:
        """Copy a result, which the next execution overwrites, without the rows that fill the batch up."""
        if not self._batched:
            return result.copy()
        expected = self._rows or count
        if not result.ndim or len(result) != expected:
            raise internal(
                f"expected the batch size of openvino model output to be {expected}, got"
                f" {len(result) if result.ndim else 0}"
            )
        return result[:count].copy()

    def _padded(self, feed: Mapping[str, Array], count: int) -> dict[str, Array]:
        if not self._pads:
            raise internal(
                f"expected requests with batch size '{self._rows}', got '{count}'... this error can be"
                " avoided by setting 'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a"
                " performance cost."
            )
        filled = {}
        for name, array in feed.items():
            filled[name] = np.zeros((self._rows, *array.shape[1:]), array.dtype)
            filled[name][:count] = array
        return filled

    def warm_up(self, batches: Collection[int]) -> None:
        """Run with zeros, because the first run of a shape costs several times what later ones do.

        Other dimensions without a fixed size are 1. A model may not accept that size, or zeros, so a failure
        is none of the load's.

        Args:
            batches: sizes of the batch dimension; 0 for a model without.
        """
        for batch in batches:
            try:
                self.run({port.get_any_name(): self._zeros(port, batch) for port in self._ports}, [])
            except (InferError, RuntimeError) as error:
                logger.debug("warm-up with a batch of %d failed: %s", batch, error)

    def _zeros(self, port: Any, batch: int) -> Array:
        shape = [dim.get_length() if dim.is_static else 1 for dim in port.get_partial_shape()]
        return np.zeros([batch, *shape[1:]] if batch else shape, port.get_element_type().to_dtype())
