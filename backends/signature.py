"""Inputs and outputs of a model configuration, compiled once for the execution path."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import TensorSpec, dims_text, input_specs, output_specs
from app.core.datatypes import DATATYPES
from app.core.errors import internal
from app.core.tensors import RequestedOutput
from backends.ragged import Ragged

Shape = tuple[int, ...]


class Output(NamedTuple):
    """An output of a model.

    Attributes:
        name: tensor name.
        datatype: v2 name.
        dtype: numpy dtype of `datatype`.
        expected: shape that the framework must return, -1 for any size, batch dimension included.
        reshaped: whether the client sees another shape.
        spec: the entry of the configuration.
        is_state: whether the sequence scheduler keeps it for the sequence's next request.
        scatter: the input by whose shapes the output is divided among requests (`batch_output`); "" for none.
    """

    name: str
    datatype: str
    dtype: np.dtype[Any]
    expected: Shape
    reshaped: bool
    spec: TensorSpec
    is_state: bool
    scatter: str = ""


class Signature:
    """Inputs and outputs of a model.

    Attributes:
        model_name: the model.
        batched: max_batch_size > 0.
        reshapes: whether any input is reshaped.
        reshaped: whether any input or output is reshaped.
        is_plain: the framework sees each request's tensors as its client does.
        inputs: by name. Controls and states of sequences are not listed; they have no reshape.
        outputs: in configuration order, then outputs of sequence states that are not outputs as well.
            States are part of every response; the sequence scheduler removes them.
        names: the names of `outputs`.
        ragged: ragged and batch inputs; None without any.
        text: whether the framework takes strings as `str`, rather than `bytes`; set by its backend.
        fitting: the last shape of each output that `check` found right: of that dtype, the next one is too.
    """

    def __init__(self, config: mc.ModelConfig) -> None:
        self.model_name = config.name
        self.batched = config.max_batch_size > 0
        self.inputs = {spec.name: spec for spec in input_specs(config)}
        self.reshapes = any(spec.reshape is not None for spec in self.inputs.values())
        self.ragged = Ragged.from_config(config)
        self._scatter = {
            name: output.source_input[0] for output in config.batch_output for name in output.target_name
        }
        states = [state for state in config.sequence_batching.state if state.output_name]
        kept = {state.output_name for state in states}
        specs = output_specs(config)
        listed = {spec.name for spec in specs}
        specs += tuple(self._state(state) for state in states if state.output_name not in listed)
        self.outputs = tuple(self._output(spec, spec.name in kept) for spec in specs)
        self.names = [output.name for output in self.outputs]
        self.reshaped = self.reshapes or any(output.reshaped for output in self.outputs)
        self.is_plain = not self.reshaped and self.ragged is None
        self.text = False
        self.fitting: dict[str, Shape] = {}
        no_names: Sequence[RequestedOutput] = ()
        self._selected = no_names, self.outputs  # the last selection; both at once, as instances share it

    def select(self, requested: Sequence[RequestedOutput]) -> tuple[Output, ...]:
        """Return the outputs of a response to a request for `requested`; an empty list asks for all."""
        if not requested:
            return self.outputs
        last, selected = self._selected
        if requested == last:
            return selected
        wanted = {output.name for output in requested}
        found = tuple(output for output in self.outputs if output.is_state or output.name in wanted)
        selected = self.outputs if len(found) == len(self.outputs) else found
        self._selected = requested, selected
        return selected

    def model_shape(self, name: str, shape: Shape) -> Shape:
        """Return the shape in which the framework sees an input of the client's `shape`."""
        if self.reshapes and name in self.inputs:
            return self.inputs[name].backend_shape(shape)
        return shape

    def check(self, output: Output, array: np.ndarray[Any, Any], check_dims: bool = True) -> None:
        """Compare an array that a model returned with the configuration of its output.

        Args:
            output: the output.
            array: the array, batch dimension included.
            check_dims: whether to compare the shape also where the client sees the same one.

        Raises:
            InferError: INTERNAL naming the output and both sides.
        """
        dtype, shape = array.dtype, array.shape
        check_dims = (check_dims or output.reshaped) and not output.scatter
        if dtype is output.dtype and (not check_dims or _fits(shape, output.expected)):
            self.fitting[output.name] = shape
            return
        if dtype != output.dtype and not (output.datatype == "BYTES" and dtype.kind in "SU"):
            raise internal(
                f"unexpected datatype for output '{output.name}' of model '{self.model_name}': configuration"
                f" expects {output.datatype}, model provides numpy dtype '{dtype}'"
            )
        if check_dims and not _fits(shape, output.expected):
            raise internal(
                f"unexpected shape for output '{output.name}' of model '{self.model_name}': configuration"
                f" expects {dims_text(output.expected)}, model provides {dims_text(shape)}"
            )

    def _output(self, spec: TensorSpec, is_state: bool) -> Output:
        dims = spec.dims if spec.reshape is None else spec.reshape
        expected = (-1, *dims) if self.batched else dims
        dtype = DATATYPES[spec.datatype or "BYTES"].dtype
        reshaped = spec.reshape is not None
        scatter = self._scatter.get(spec.name, "")
        return Output(spec.name, spec.datatype, dtype, expected, reshaped, spec, is_state, scatter)

    def _state(self, state: mc.ModelSequenceBatching.State) -> TensorSpec:
        as_output = mc.ModelOutput(name=state.output_name, data_type=state.data_type, dims=state.dims)
        config = mc.ModelConfig(max_batch_size=int(self.batched), output=[as_output])
        return output_specs(config)[0]


def _fits(actual: Shape, expected: Shape) -> bool:
    if len(actual) != len(expected):
        return False
    for size, dim in zip(actual, expected, strict=True):  # noqa: SIM110  (a generator costs more than the loop)
        if size != dim and dim >= 0:
            return False
    return True
