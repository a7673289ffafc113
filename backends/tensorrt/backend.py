"""Backend of TensorRT engines: `model.plan`, or built from `model.onnx`; PyTorch's streams and memory."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorrt as trt
import torch
from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import BY_CONFIG_NAME
from app.core.errors import InferError, internal, invalid_arg, unavailable
from backends.array_backend import ArrayBackend
from backends.base import Instance, Model
from backends.cuda.device import LOADING, CudaDevice, cuda_device
from backends.cuda.graphs import GraphSpec, GraphTable, Shapes, graph_shapes, graph_specs
from backends.signature import Shape
from backends.tensorrt.builder import built_plan
from backends.tensorrt.engine import EngineIO, check, complete, read_io
from backends.tensorrt.profiles import Profile, choose, profiles_of
from backends.tensorrt.runtime import LOG, NO_CORE, deserialise
from backends.tensorrt.settings import launches_in_turn, note_coalescing

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

_STRATEGY: Final = "execution_context_allocation_strategy"


class _Engines:
    """The engine of a model on each GPU or DLA core, shared by its instances there.

    Attributes:
        turns: by CUDA ordinal, held by an instance while it launches a batch, if they do so in turn.
    """

    def __init__(self) -> None:
        self.turns: dict[int, threading.Lock] = defaultdict(threading.Lock)
        self._by_device: dict[tuple[int, int], tuple[Any, Any, EngineIO]] = {}

    def get(self, model: Model, device: torch.device, core: int) -> tuple[Any, EngineIO]:
        """Return the engine and its tensors; deserialise it for the first instance of a device.

        Raises:
            InferError: UNAVAILABLE without the file, INTERNAL with TensorRT's message.
        """
        with LOADING:
            key = device.index, core
            if key not in self._by_device:
                runtime, engine = deserialise(_plan(model, device), device, model.backend_config, core)
                self._by_device[key] = runtime, engine, read_io(engine)
            _, engine, io = self._by_device[key]
            return engine, io


def _plan(model: Model, device: torch.device) -> Path:
    capability = "{}.{}".format(*torch.cuda.get_device_capability(device))
    names = model.config.cc_model_filenames
    path = model.artifact("model.plan", names.get(capability, ""))
    if path.suffix == ".onnx" and path.is_file():
        return built_plan(model, path, device)
    if not path.is_file():
        raise unavailable(f"unable to find '{path}' for model instance '{model.name}'")
    return path


class _Grown(trt.IOutputAllocator):  # type: ignore[misc]
    """Output memory that grows: the shape depends on the values of the inputs."""

    def __init__(self, device: CudaDevice) -> None:
        trt.IOutputAllocator.__init__(self)
        self._device = device
        self.memory = device.allocate(1)
        self.shape: Shape = ()

    def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, stream: int) -> int:
        """Provide memory; called by TensorRT when it knows the bytes it needs."""
        if size > self.memory.numel():
            self.memory = self._device.allocate(size)
        return self.memory.data_ptr()

    def notify_shape(self, name: str, shape: Any) -> None:
        """Store the shape; called by TensorRT when it knows it."""
        self.shape = tuple(shape)


class _Output(NamedTuple):
    """An output in device or host memory; `shape` is known once the execution was started."""

    memory: torch.Tensor
    shape: Shape


class _Context:
    """An execution context: one profile, executing one batch at a time."""

    def __init__(self, buffers: "_Buffers", engine: Any, profile: Profile) -> None:
        self._buffers = buffers
        self._device = buffers.device
        strategies, scratch = trt.ExecutionContextAllocationStrategy, buffers.scratch
        self._context = engine.create_execution_context(
            strategies.ON_PROFILE_CHANGE if scratch is None else strategies.USER_MANAGED
        )
        if self._context is None:
            raise internal(f"unable to create TensorRT context: {LOG.last_error}")
        if scratch is not None:
            self._context.set_device_memory(scratch.data_ptr(), scratch.numel())
        if not self._context.set_optimization_profile_async(profile.number, self._device.stream):
            raise internal(f"unable to set optimization profile {profile.number}: {LOG.last_error}")
        self._device.wait()
        self._grown: dict[str, _Grown] = {}
        for name in buffers.io.inputs:
            self._set_address(name, buffers.memory[name])

    def bind(self, shapes: Shapes) -> dict[str, _Output | _Grown]:
        """Prepare an execution of inputs of these shapes, after the values of shape tensors were copied.

        Raises:
            InferError: INTERNAL with TensorRT's message.
        """
        context, outputs = self._context, self._buffers.io.outputs
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise internal(f"trt failed to set binding dimension for input '{name}': {LOG.last_error}")
        if missing := context.infer_shapes():
            raise internal(f"failed to specify the dimensions of all input bindings: {', '.join(missing)}")
        return {name: self._bind_output(name, tuple(context.get_tensor_shape(name))) for name in outputs}

    def _bind_output(self, name: str, shape: Shape) -> "_Output | _Grown":
        if -1 in shape:
            if name not in self._grown:
                self._grown[name] = _Grown(self._device)
                self._context.set_output_allocator(name, self._grown[name])
            return self._grown[name]
        memory = self._buffers.reserve(name, shape)
        self._set_address(name, memory)
        return _Output(memory, shape)

    def enqueue(self) -> None:
        """Start the execution on the instance's stream.

        Raises:
            InferError: INTERNAL with TensorRT's message.
        """
        if not self._context.execute_async_v3(self._device.stream):
            raise internal(f"failed to run TensorRT inference: {LOG.last_error}")

    def _set_address(self, name: str, memory: torch.Tensor) -> None:
        if not self._context.set_tensor_address(name, memory.data_ptr()):
            raise internal(f"'{name}' does not map to an input or output tensor")


class _Buffers:
    """The memory of an instance, which its contexts share: it executes one batch at a time.

    Attributes:
        memory: uint8[n] by tensor: inputs for the largest shape of any profile in use, outputs for the
            largest so far.
        scratch: TensorRT's temporary memory; None where each context has its own.
    """

    def __init__(
        self, device: CudaDevice, io: EngineIO, profiles: Sequence[Profile], scratch: int | None
    ) -> None:
        self.device = device
        self.io = io
        self.tensors = {**io.inputs, **io.outputs}
        self.dtypes = {name: BY_CONFIG_NAME[known.config_type].dtype for name, known in self.tensors.items()}
        self.scratch = None if scratch is None else device.allocate(max(1, scratch))
        self.memory: dict[str, torch.Tensor] = {}
        for profile in profiles:
            for name, allowed in profile.shapes.items():
                self.reserve(name, allowed.high)

    def reserve(self, name: str, shape: Shape) -> torch.Tensor:
        """Ensure memory for a tensor of this shape, where TensorRT reads or writes it."""
        nbytes = max(1, prod(shape) * self.dtypes[name].itemsize)
        if name not in self.memory or self.memory[name].numel() < nbytes:
            on_host = self.tensors[name].on_host
            self.memory[name] = (
                torch.zeros(nbytes, dtype=torch.uint8) if on_host else self.device.allocate(nbytes)
            )
        return self.memory[name]

    def fill(self, name: str, array: Array) -> None:
        """Copy an input to where TensorRT reads it: host memory at once, device memory on the stream."""
        if not self.tensors[name].on_host:
            self.device.upload(name, array, self.memory[name])
        elif array.nbytes:
            self.memory[name].numpy()[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def fetch(self, name: str, output: "_Output | _Grown") -> torch.Tensor:
        """Start to copy an output to host memory, uint8[n], unless it is there already."""
        source = output.memory[: prod(output.shape) * self.dtypes[name].itemsize]
        return source if self.tensors[name].on_host else self.device.download(source)

    def array(self, name: str, host: torch.Tensor, shape: Shape) -> Array:
        """Return the result of `fetch`, once it is valid, as an array that no execution writes to."""
        data = host.clone() if self.tensors[name].on_host else host
        return np.asarray(data.numpy().view(self.dtypes[name]).reshape(shape))


class _Recorded(NamedTuple):
    """A recorded execution, its outputs, and the context, which must live as long."""

    replay: Callable[[], None]
    outputs: Mapping[str, "_Output | _Grown"]
    context: _Context


class _Loaded:
    """The state of an instance: a context for each profile, a stream, buffers, and CUDA graphs.

    Attributes:
        turn: entered to launch a batch.
    """

    def __init__(
        self,
        instance: Instance,
        engine: Any,
        io: EngineIO,
        device: CudaDevice,
        turn: AbstractContextManager[Any],
    ) -> None:
        config = instance.model.config
        self.turn = turn
        self._engine = engine
        self._profiles = profiles_of(instance.profiles, io.profiles, config.name)
        scratch = int(engine.device_memory_size_v2) if _shares_scratch(instance) else None
        self.buffers = _Buffers(device, io, self._profiles, scratch)
        self._contexts = {profile.number: self._context(profile) for profile in self._profiles}
        self._graphs: GraphTable[_Recorded] = GraphTable()
        self._record(graph_specs(config), instance)

    def _context(self, profile: Profile) -> _Context:
        return _Context(self.buffers, self._engine, profile)

    def start(self, inputs: Mapping[str, Array]) -> dict[str, "_Output | _Grown"]:
        """Start an execution on the stream.

        Raises:
            InferError: INVALID_ARG for shapes that no profile allows, INTERNAL with TensorRT's message.
        """
        shapes = {name: array.shape for name, array in inputs.items()}
        recorded = self._graphs.find(shapes) if len(self._graphs) else None
        if recorded is None:
            context = self._contexts[self._chosen(inputs, shapes).number]
        for name, array in inputs.items():
            self.buffers.fill(name, array)
        if recorded is not None:
            recorded.graph.replay()
            return {
                name: _Output(output.memory, recorded.cut(output.shape, shapes))
                for name, output in recorded.graph.outputs.items()
            }
        outputs = context.bind(shapes)
        context.enqueue()
        return outputs

    def _chosen(self, inputs: Mapping[str, Array], shapes: Shapes) -> Profile:
        known = self.buffers.io.inputs
        values = {
            name: tuple(array.ravel().tolist()) for name, array in inputs.items() if known[name].is_shape
        }
        return choose(self._profiles, shapes, values)

    def _record(self, specs: Sequence[GraphSpec], instance: Instance) -> None:
        """Record graphs in order of size, until one fails, as Triton does."""
        if specs and any(tensor.is_shape for tensor in self.buffers.tensors.values()):
            logger.warning("Detected shape tensor, CUDA graph is not captured for %s", instance.name)
            return
        preferred = {name: allowed.best for name, allowed in self._profiles[0].shapes.items()}
        for spec in specs:
            shapes = graph_shapes(spec, preferred)
            try:
                profile = choose(self._profiles, shapes, {})
            except InferError:
                continue  # no profile allows such a batch
            try:
                self._graphs.record(spec, shapes, partial(self._recorded, profile, shapes))
            except Exception as error:
                logger.warning("unable to record CUDA graph for %s: %s", instance.name, error)
                return

    def _recorded(self, profile: Profile, shapes: Shapes) -> _Recorded:
        # A context of its own: binding new shapes would change memory that a recorded execution reads.
        context = self._context(profile)
        outputs = context.bind(shapes)
        if any(isinstance(output, _Grown) for output in outputs.values()):
            raise internal("the shape of an output depends on the values of the inputs")
        context.enqueue()  # with new shapes TensorRT first initialises itself, which cannot be recorded
        self.buffers.device.wait()
        return _Recorded(self.buffers.device.record(context.enqueue), outputs, context)


class TensorRtBackend(ArrayBackend):
    """Backend `tensorrt`: `model.plan`, or for a compute capability a file of `cc_model_filenames`."""

    def initialize(self, config: Mapping[str, str]) -> None:
        note_coalescing(config)
        self._in_turn = launches_in_turn(config)

    def model_initialize(self, model: Model) -> None:
        model.state = _Engines()

    def model_finalize(self, model: Model) -> None:
        model.state = None

    def load(self, instance: Instance) -> _Loaded:
        _refuse_other_kinds(instance.model.config, instance.kind)
        device = CudaDevice(instance)
        core = next((each.device_id for each in instance.secondary_devices), NO_CORE)
        engine, io = instance.model.state.get(instance.model, device.device, core)
        check(instance.model.config, io)
        instance.merged_inputs = device.inputs
        with LOADING, device.current():
            turn = instance.model.state.turns[device.index] if self._in_turn else nullcontext()
            return _Loaded(instance, engine, io, device, turn)

    def execute(
        self, loaded: _Loaded, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        buffers = loaded.buffers
        with buffers.device.current():
            with loaded.turn:
                started = loaded.start(inputs)
                hosts = {name: buffers.fetch(name, started[name]) for name in outputs}
            buffers.device.wait()
        return {name: buffers.array(name, host, started[name].shape) for name, host in hosts.items()}

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        group = model.config.instance_group[0]
        _refuse_other_kinds(model.config, mc.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_"))
        device = cuda_device(Instance(model, group.name, "GPU", group.gpus[0] if group.gpus else 0))
        _, engine = deserialise(_plan(model, device), device, model.backend_config)
        return complete(model.config, read_io(engine))


def _refuse_other_kinds(config: mc.ModelConfig, kind: str) -> None:
    if kind != "GPU":
        raise invalid_arg(f"unable to load model '{config.name}', TensorRT backend supports only GPU device")


def _shares_scratch(instance: Instance) -> bool:
    """Return whether the contexts of an instance share temporary memory that is enough for every profile.

    Otherwise TensorRT allocates that of each context, for its profile. The texts are Triton's.

    Raises:
        InferError: INVALID_ARG for another strategy than Triton's two.
    """
    strategy = instance.model.parameter(_STRATEGY, "STATIC")
    if strategy not in ("STATIC", "ON_PROFILE_CHANGE"):
        raise invalid_arg(
            f"Invalid value for '{_STRATEGY}': '{strategy}' for model instance '{instance.name}'. Supported"
            " values are 'STATIC' and 'ON_PROFILE_CHANGE'"
        )
    return strategy == "STATIC"
