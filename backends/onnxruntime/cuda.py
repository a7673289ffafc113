"""Runs of an ONNX Runtime session on a GPU, with tensors bound in device memory and copied here.

`session.run` would copy every tensor to and from pageable memory, one after the other. On the CPU it does not
copy outputs at all, and binding costs more than it does.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import torch
from torch.utils.dlpack import from_dlpack

from app.core.datatypes import BY_CONFIG_NAME
from backends.base import Model
from backends.cuda.device import CudaDevice
from backends.cuda.graphs import GraphSpec, GraphTable, Shapes, graph_shapes, graph_specs
from backends.onnxruntime.model_io import ONNX_BFLOAT16, OnnxIO, OnnxTensor
from backends.onnxruntime.session import run_options
from backends.signature import Shape

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

# The run option that names a CUDA graph, and the name that means none.
_GRAPH_ID: Final = "gpu_graph_id"
_NO_GRAPH: Final = -1


class _Bound:
    """Tensors of a session bound to device memory."""

    def __init__(self, runs: "CudaRuns", options: ort.RunOptions) -> None:
        self._runs = runs
        self._device = runs.device
        self._options = options
        self._binding = runs.session.io_binding()
        self._memory: dict[str, torch.Tensor] = {}

    def fill(self, inputs: Mapping[str, Array]) -> None:
        """Start to copy inputs to the device, to the same address every time unless they have grown."""
        for name, array in inputs.items():
            if name not in self._memory or self._memory[name].numel() < array.nbytes:
                self._memory[name] = self._device.allocate(max(1, array.nbytes))
            self._device.upload(name, array, self._memory[name])

    def bind_inputs(self, shapes: Shapes) -> None:
        """Bind inputs of these shapes."""
        for name, shape in shapes.items():
            place = self._device.kind, self._device.index
            self._binding.bind_input(
                name, *place, self._runs.element(name), shape, self._memory[name].data_ptr()
            )

    def bind_outputs(self, names: Sequence[str]) -> None:
        """Bind these outputs only, to memory that ONNX Runtime allocates on the device."""
        self._binding.clear_binding_outputs()
        for name in names:
            self._binding.bind_output(name, self._device.kind, self._device.index)

    def fix_outputs(self, outputs: Mapping[str, torch.Tensor]) -> None:
        """Bind these outputs to memory of their present size, whose address stays."""
        self._binding.clear_binding_outputs()
        for name, like in outputs.items():
            memory = self._memory[name] = self._device.allocate(max(1, like.nbytes))
            place = self._device.kind, self._device.index
            self._binding.bind_output(
                name, *place, self._runs.element(name), tuple(like.shape), memory.data_ptr()
            )

    def run(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Run the session; return the outputs on the device, in the order they were bound."""
        self._runs.session.run_with_iobinding(self._binding, self._options)
        values = self._binding.get_outputs()
        return {name: from_dlpack(value) for name, value in zip(names, values, strict=True)}


class _Recorded(NamedTuple):
    """A CUDA graph that ONNX Runtime recorded, with its bound tensors."""

    bound: _Bound
    outputs: Sequence[str]


class CudaRuns:
    """Executes the batches of one instance.

    Args:
        session: a session on the GPU, with the stream of `device` as its compute stream.
        io: the session's tensors.
        device: the GPU and stream.
        model: its configuration lists the graphs to record.
    """

    def __init__(self, session: ort.InferenceSession, io: OnnxIO, device: CudaDevice, model: Model) -> None:
        self.session = session
        self.device = device
        self._tensors: dict[str, OnnxTensor] = {**io.optional, **io.inputs, **io.outputs}
        self._model = model
        self._bound = _Bound(self, self._options(_NO_GRAPH))
        self._graphs: GraphTable[_Recorded] = GraphTable()
        with device.current():
            self._record(graph_specs(model.config), io)

    def element(self, name: str) -> Any:
        """Return the type of a tensor in the form that `bind_input` and `bind_output` accept."""
        kind = self._tensors[name].config_type
        return ONNX_BFLOAT16 if kind == "TYPE_BF16" else BY_CONFIG_NAME[kind].dtype.type

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Copy the inputs to the device, run, and copy the requested outputs to new host memory."""
        device = self.device
        shapes = {name: array.shape for name, array in inputs.items()}
        recorded = self._graphs.find(shapes) if len(self._graphs) else None
        with device.current():
            if recorded is None:
                found = self._run(inputs, shapes, outputs)
            else:
                recorded.graph.bound.fill(inputs)
                found = recorded.graph.bound.run(recorded.graph.outputs)
                found = {
                    name: _cut(value, recorded.cut(tuple(value.shape), shapes))
                    for name, value in found.items()
                }
            hosts = {name: device.download(_bytes(found[name])) for name in outputs}
            device.wait()
        return {name: self._array(name, host, tuple(found[name].shape)) for name, host in hosts.items()}

    def _run(
        self, inputs: Mapping[str, Array], shapes: Shapes, outputs: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        self._bound.fill(inputs)
        self._bound.bind_inputs(shapes)
        self._bound.bind_outputs(outputs)
        return self._bound.run(outputs)

    def _array(self, name: str, host: torch.Tensor, shape: Shape) -> Array:
        dtype = BY_CONFIG_NAME[self._tensors[name].config_type].dtype
        return np.asarray(host.numpy().view(dtype).reshape(shape))

    def _options(self, graph: int) -> ort.RunOptions:
        options = run_options(self._model) or ort.RunOptions()
        options.add_run_config_entry(_GRAPH_ID, str(graph))
        return options

    def _record(self, specs: Sequence[GraphSpec], io: OnnxIO) -> None:
        """Record graphs in order of size, until one fails."""
        preferred = {name: tensor.shape for name, tensor in io.inputs.items()}
        for number, spec in enumerate(specs, 1):
            shapes = graph_shapes(spec, preferred)
            try:
                if any(-1 in shape for shape in shapes.values()):
                    raise ValueError("its graph_spec leaves dimensions of inputs open")
                self._graphs.record(spec, shapes, partial(self._recorded, number, shapes, list(io.outputs)))
            except Exception as error:
                logger.warning("unable to record CUDA graph for %s: %s", self._model.name, error)
                return

    def _recorded(self, number: int, shapes: Shapes, outputs: Sequence[str]) -> _Recorded:
        zeros = {
            name: np.zeros(shape, BY_CONFIG_NAME[self._tensors[name].config_type].dtype)
            for name, shape in shapes.items()
        }
        sizes = self._run(zeros, shapes, outputs)
        bound = _Bound(self, self._options(number))
        bound.fill(zeros)
        bound.bind_inputs(shapes)
        bound.fix_outputs(sizes)
        bound.run(outputs)  # ONNX Runtime records here, and replays from the next run on
        return _Recorded(bound, outputs)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, uint8[n]: numpy does not have all types of PyTorch."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _cut(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    return tensor[: shape[0]] if shape else tensor
