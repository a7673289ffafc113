"""Backend of ONNX models, executed by ONNX Runtime, which releases the GIL while a session runs."""

import ctypes
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError, internal, unavailable, unsupported
from app.core.installed.installation import install_command
from backends.array_backend import ArrayBackend
from backends.base import Instance, Model
from backends.onnxruntime import accelerator
from backends.onnxruntime.bound import BoundRuns
from backends.onnxruntime.model_io import ONNX_BFLOAT16, OnnxIO, check, complete, read_io
from backends.onnxruntime.session import (
    CPU,
    FATAL,
    Provider,
    graph_level,
    providers,
    run_of,
    run_options,
    session_options,
    uses_global_threads,
)
from backends.parameters import boolean
from backends.signature import Shape

if TYPE_CHECKING:
    from openvino import CompiledModel

    from backends.onnxruntime.cuda import CudaRuns
    from backends.openvino.runs import Runs

Array = npt.NDArray[Any]

_ORT_TEXT: Final = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)


class _Shared:
    """Sessions shared by the instances of a group, and the model that OpenVINO executes for all of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_group: dict[str, ort.InferenceSession] = {}
        self.openvino: tuple[OnnxIO, CompiledModel | None] | None = None


class _Loaded:
    """A session, and the conversions of its tensors before and after a run."""

    def __init__(self, session: ort.InferenceSession, io: OnnxIO, model: Model) -> None:
        self.session = session
        self.run = None if session is None else run_of(session)
        self.runs: CudaRuns | Runs | None = None
        self.options = run_options(model)
        tensors = {**io.optional, **io.inputs}
        self.strings = frozenset(
            name for name, tensor in tensors.items() if tensor.config_type == "TYPE_STRING"
        )
        self.bfloats = frozenset(
            name for name, tensor in {**tensors, **io.outputs}.items() if tensor.config_type == "TYPE_BF16"
        )
        signature = model.signature
        signature.text = True
        self.scalar_inputs = frozenset(
            name for name in signature.inputs if name in tensors and not tensors[name].shape
        )
        self.scalar_outputs: dict[str, Shape] = {
            output.name: output.expected
            for output in signature.outputs
            if not io.outputs[output.name].shape and not signature.batched
        }
        gives_strings = any(tensor.config_type == "TYPE_STRING" for tensor in io.outputs.values())
        special = self.strings or gives_strings or self.bfloats or self.scalar_inputs or self.scalar_outputs
        self.is_plain = not special
        self.bound: BoundRuns | None = None


class OnnxRuntimeBackend(ArrayBackend):
    """Backend `onnxruntime`: `model.onnx` is a file, or a directory that holds a `model.onnx`.

    The CPU instances of a group share one session: ONNX Runtime allows concurrent runs, and the weights are
    in memory once. GPU instances have a session each, with a stream of its own. The parameter
    `share_session_between_instances` overrides both.
    """

    # Declared shapes are compared once, at load. Many exported models declare fewer dimensions than
    # they return, of which ONNX Runtime warns; Triton sends the actual ones.
    checks_dims = False

    def initialize(self, config: Mapping[str, str]) -> None:
        if uses_global_threads(config):
            intra = int(config.get("intra-op-thread-count", "0"))
            ort.set_global_thread_pool_sizes(intra, int(config.get("inter-op-thread-count", "0")))

    def model_initialize(self, model: Model) -> None:
        model.state = _Shared()

    def model_finalize(self, model: Model) -> None:
        model.state = None

    def load(self, instance: Instance) -> _Loaded:
        if instance.kind == "GPU" and not _shares_session(instance):
            return self._load_on_gpu(instance)
        if accelerator.wants_openvino(instance):
            loaded = self._load_on_openvino(instance)
            if loaded is not None:
                return loaded
        session = self._session(instance)
        io = read_io(session)
        check(instance.model.config, io)
        signature = instance.model.signature
        loaded = _Loaded(session, io, instance.model)
        if loaded.is_plain and session.get_providers() == [CPU[0]]:
            loaded.bound = BoundRuns(session, loaded.options, signature)
            if signature.is_plain:
                instance.answer = loaded.bound.answer
        return loaded

    def _load_on_openvino(self, instance: Instance) -> _Loaded | None:
        """Load the model into OpenVINO, once for all instances; None if that cannot execute it."""
        model = instance.model
        shared: _Shared = model.state
        with shared.lock:
            if shared.openvino is None:
                io = read_io(_open(model, session_options(model), [CPU]))
                check(model.config, io)
                shared.openvino = io, accelerator.compile_onnx(model, _path(model), io)
        io, compiled = shared.openvino
        if compiled is None:
            return None
        loaded = _Loaded(None, io, model)
        loaded.is_plain = False
        loaded.runs = accelerator.new_runs(model, compiled)
        return loaded

    def _load_on_gpu(self, instance: Instance) -> _Loaded:
        """Load a session that uses a stream of its own, which a shared session cannot."""
        device_module = _cuda_device(instance)
        model, gpu = instance.model, device_module.CudaDevice(instance)
        with device_module.LOADING:
            session = _open(model, session_options(model), providers(instance, gpu.stream))
            _check_gpu(instance, session)
            io = read_io(session)
            check(model.config, io)
            loaded = _Loaded(session, io, model)
            if not loaded.strings:
                from backends.onnxruntime.cuda import CudaRuns

                loaded.is_plain = False
                loaded.runs = CudaRuns(session, io, gpu, model)
                instance.merged_inputs = gpu.inputs
        return loaded

    def _session(self, instance: Instance) -> ort.InferenceSession:
        model = instance.model
        if not _shares_session(instance):
            return _open(model, session_options(model), providers(instance))
        sessions: _Shared = model.state
        group = instance.name.rpartition("_")[0] + f"@{instance.kind}{instance.device_id}"
        with sessions.lock:
            if group not in sessions.by_group:
                sessions.by_group[group] = _open(model, session_options(model), providers(instance))
            return sessions.by_group[group]

    def execute(
        self, loaded: _Loaded, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        bound = loaded.bound
        if bound is not None:
            return bound.run(inputs) or self._run_plain(loaded, bound, inputs, outputs)
        try:
            if loaded.run is not None and loaded.is_plain:
                return dict(zip(outputs, loaded.run(outputs, inputs, loaded.options), strict=True))
            feed = {name: _prepare(loaded, name, array) for name, array in inputs.items()}
            if loaded.runs is not None:
                found = loaded.runs.run(feed, outputs)
            else:
                run = _run_values if loaded.bfloats else _run_arrays
                found = dict(zip(outputs, run(loaded, feed, outputs), strict=True))
        except InferError:
            raise
        except Exception as error:
            raise _explained(error) from error
        for name, shape in loaded.scalar_outputs.items():
            if name in found:
                found[name] = found[name].reshape(shape)
        return found

    @staticmethod
    def _run_plain(
        loaded: _Loaded, bound: BoundRuns, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        """Run with memory of ONNX Runtime's own, and have that of the next run of these shapes bound."""
        assert loaded.run is not None
        try:
            found = dict(zip(outputs, loaded.run(outputs, inputs, loaded.options), strict=True))
        except Exception as error:
            bound.failed = False
            raise _explained(error) from error
        bound.learn(inputs, found)
        return found

    def runs_on_event_loop(self, instance: Instance) -> bool:
        return instance.kind == "CPU"

    @classmethod
    def inspect(cls, model: Model) -> bool:
        return not model.config.model_operations.op_library_filename

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        config = model.config
        if (config.input or config.batch_input) and config.output:
            return config
        options = ort.SessionOptions()
        options.log_severity_level = FATAL
        # As at load: folding of constants settles dimensions of outputs, which the configuration must match.
        options.graph_optimization_level = graph_level(model)
        options.intra_op_num_threads = 1
        for library in config.model_operations.op_library_filename:
            options.register_custom_ops_library(library)
        return complete(model, read_io(_open(model, options, [CPU])))


def _shares_session(instance: Instance) -> bool:
    key = "share_session_between_instances"
    if key in instance.model.config.parameters:
        return boolean(instance.model, key)
    return instance.kind == "CPU"


def _cuda_device(instance: Instance) -> ModuleType:
    """Return `backends.cuda.device`, which imports PyTorch, so only for GPU instances.

    Raises:
        InferError: UNSUPPORTED without PyTorch.
    """
    try:
        from backends.cuda import device
    except ImportError as error:
        raise unsupported(
            f"instance '{instance.name}' has kind KIND_GPU, which needs PyTorch; install the extra:"
            f" {install_command('gpu')}"
        ) from error
    return device


def _check_gpu(instance: Instance, session: ort.InferenceSession) -> None:
    """Check that ONNX Runtime did not fall back to the CPU, as it does silently without CUDA's libraries.

    Raises:
        InferError: UNSUPPORTED when it did.
    """
    if instance.kind == "GPU" and session.get_providers()[0] == "CPUExecutionProvider":
        raise unsupported(
            f"instance '{instance.name}' has kind KIND_GPU but ONNX Runtime cannot use CUDA on this machine:"
            " its CUDA and cuDNN libraries, or the driver, are missing or of another version"
        )


def _open(model: Model, options: ort.SessionOptions, chosen: Sequence[Provider]) -> ort.InferenceSession:
    path = _path(model)
    if not path.is_file():
        raise unavailable(f"unable to find '{path}' for model instance '{model.name}'")
    try:
        return ort.InferenceSession(str(path), options, providers=list(chosen))
    except Exception as error:
        raise _explained(error) from error


def _path(model: Model) -> Path:
    path = model.artifact("model.onnx")
    return path / "model.onnx" if path.is_dir() else path


def _prepare(loaded: _Loaded, name: str, array: Array) -> Array:
    if name in loaded.scalar_inputs:
        array = array.reshape(())
    return array


def _run_arrays(loaded: _Loaded, feed: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
    return list(loaded.session.run(outputs, feed, loaded.options))


def _run_values(loaded: _Loaded, feed: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
    """Run with OrtValues, which have bfloat16; numpy has not."""
    values = {name: _value(loaded, name, array) for name, array in feed.items()}
    results = loaded.session.run_with_ort_values(outputs, values, loaded.options)
    return [
        _bfloat_bits(result) if name in loaded.bfloats else result.numpy()
        for name, result in zip(outputs, results, strict=True)
    ]


def _value(loaded: _Loaded, name: str, array: Array) -> ort.OrtValue:
    if name not in loaded.bfloats:
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, ONNX_BFLOAT16)


def _bfloat_bits(value: ort.OrtValue) -> Array:
    """Return a copy of a bfloat16 tensor as uint16 bit patterns."""
    shape = value.shape()
    if value.device_name() != "cpu":
        raise internal("bfloat16 output is not in CPU memory")
    data = ctypes.string_at(value.data_ptr(), int(np.prod(shape, dtype=np.int64)) * 2)
    return np.frombuffer(data, np.uint16).reshape(shape)


def _explained(error: Exception) -> InferError:
    """Return a failure in Triton's words: the number of ONNX Runtime's error code and its first line."""
    found = _ORT_TEXT.search(str(error))
    text = found[2] if found else str(error)
    first_line = (text.strip().splitlines() or [type(error).__name__])[0]
    return internal(f"onnx runtime error {found[1]}: {first_line}" if found else first_line)
