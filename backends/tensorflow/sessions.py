"""Graphs and sessions of TensorFlow 1's interface, which also execute the SavedModels of TensorFlow 2."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from app.core.errors import InferError, internal, unavailable
from app.core.tensors import SMALL
from backends.base import Instance
from backends.load_locks import loading
from backends.tensorflow.graphs import load_graph
from backends.tensorflow.options import SessionSettings, model_path, session_settings
from backends.tensorflow.signature import TensorNames

Array = npt.NDArray[Any]

_V1: Final = tf.compat.v1
tf.get_logger().setLevel("ERROR")  # it warns of the interface for sessions, at each load


class TfSession:
    """A graph with its session, which takes concurrent runs.

    A callable of a session costs a tenth of `Session.run`, and of a signature that is called as a function.
    It is not in TensorFlow's public interface, so `Session.run` takes its place where it is missing, and for
    requests that leave out inputs or outputs.

    Attributes:
        graph: the graph.
        names: what an execution feeds and fetches.
        place: the kind and number of its device.
        users: how many instances use it.
    """

    def __init__(self, session: Any, names: TensorNames, place: str) -> None:
        self.graph = session.graph
        self.names = names
        self.place = place
        self.users = 0
        self._session = session
        self._inputs = list(names.inputs)
        self._outputs = list(names.outputs)
        self._scalars = {
            name
            for name, tensor in names.inputs.items()
            if self.graph.get_tensor_by_name(tensor).shape.rank == 0
        }
        self._call = _make_callable(session, names)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Return outputs by name.

        Raises:
            InferError: INTERNAL with the first line of TensorFlow's error.
        """
        if self._scalars:
            inputs = {name: self._without_dims(name, array) for name, array in inputs.items()}
        try:
            if self._call is not None and outputs == self._outputs and len(inputs) == len(self._inputs):
                found = self._call(*[inputs[name] for name in self._inputs])
            else:
                feed = {self.names.inputs[name]: array for name, array in inputs.items()}
                found = self._session.run([self.names.outputs[name] for name in outputs], feed)
        except Exception as error:
            raise explained(error) from error
        own = {}
        for name, value in zip(outputs, found, strict=True):
            if type(value) is not np.ndarray or value.nbytes > SMALL:  # else it is copied
                value = _own_array(value, inputs.values())
            own[name] = value
        return own

    def _without_dims(self, name: str, array: Array) -> Array:
        return array.reshape(()) if name in self._scalars and array.size == 1 else array

    def close(self) -> None:
        """Release the graph's variables and threads."""
        self._call = None
        self._session.close()


class Sessions:
    """The sessions of a model, each shared by as many instances as the configuration allows."""

    def __init__(self, shared_by: int | None) -> None:
        self._shared_by = shared_by
        self._lock = threading.Lock()
        self._last: dict[str, TfSession] = {}

    def take(self, instance: Instance) -> TfSession:
        """Return a session for an instance, a new one if those there are taken."""
        place = f"{instance.kind} {instance.device_id}"
        with self._lock:
            session = self._last.get(place)
            if session is None or session.users == self._shared_by:
                session = self._last[place] = open_session(instance, place)
            session.users += 1
            return session

    def release(self, session: TfSession) -> None:
        """Close a session that its last instance no longer uses."""
        with self._lock:
            session.users -= 1
            if session.users:
                return
            if self._last.get(session.place) is session:
                del self._last[session.place]
        session.close()


def open_session(instance: Instance, place: str) -> TfSession:
    """Load the model of an instance and initialise its variables and tables.

    Raises:
        InferError: UNAVAILABLE without the model's file; INVALID_ARG or INTERNAL when it cannot be loaded, or
            differs from the configuration.
    """
    path = model_path(instance.model)
    if not path.exists():
        raise unavailable(f"unable to find '{path}' for model instance '{instance.name}'")
    settings = session_settings(instance)
    graph = tf.Graph()
    session = _V1.Session(graph=graph, config=session_config(settings))
    device = f"/gpu:{settings.gpu}" if settings.gpu is not None and settings.gpu >= 0 else None
    try:
        with loading("tensorflow"), graph.as_default(), graph.device(device):
            names = load_graph(instance.model, path, session, clear_devices=settings.gpu != -1)
        return TfSession(session, names, place)
    except InferError:
        session.close()
        raise
    except Exception as error:
        session.close()
        raise explained(error) from error


def session_config(settings: SessionSettings) -> Any:
    """Return TensorFlow's configuration of a session (ConfigProto)."""
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=settings.intra_threads,
        inter_op_parallelism_threads=settings.inter_threads,
        use_per_session_threads=settings.own_threads,
        allow_soft_placement=settings.soft_placement,
    )
    if settings.gpu is None:
        config.device_count["GPU"] = 0
    config.gpu_options.allow_growth = settings.gpu_memory_fraction == 0
    config.gpu_options.per_process_gpu_memory_fraction = settings.gpu_memory_fraction
    if settings.jit_level is not None:
        config.graph_options.optimizer_options.global_jit_level = settings.jit_level
    _add_accelerators(config.graph_options.rewrite_options, settings)
    return config


def _add_accelerators(rewriter: Any, settings: SessionSettings) -> None:
    tensorrt, mixed_precision = settings.accelerators
    if tensorrt is not None:
        rewriter.meta_optimizer_iterations = rewriter.ONE
        rewriter.optimizers.extend(["constfold", "layout", "constfold"])
        optimizer = rewriter.custom_optimizers.add(name="TensorRTOptimizer")
        optimizer.parameter_map["is_dynamic_op"].b = True
        for key, value in tensorrt.items():
            if isinstance(value, str):
                optimizer.parameter_map[key].s = value.encode()
            else:
                optimizer.parameter_map[key].i = value
        rewriter.custom_optimizers.add(name="constfold")
    if mixed_precision:
        rewriter.meta_optimizer_iterations = rewriter.ONE
        rewriter.auto_mixed_precision = rewriter.ON


def explained(error: Exception) -> InferError:
    """Return a failure with the first line of TensorFlow's message, without its traces of the graph."""
    text = getattr(error, "message", None) or str(error)
    return internal((text.strip().splitlines() or [type(error).__name__])[0])


def _make_callable(session: Any, names: TensorNames) -> Any:
    make = getattr(session, "_make_callable_from_options", None)
    if make is None:
        return None
    return make(config_pb2.CallableOptions(feed=names.inputs.values(), fetch=names.outputs.values()))


def _own_array(value: Any, given: Iterable[Array]) -> Array:
    """Return an output as an array of its own, of one element for a tensor without dimensions.

    TensorFlow returns such a tensor as a number or bytes. One that only passes through has the memory of its
    input, which belongs to the request.
    """
    if not isinstance(value, np.ndarray):
        return np.array([value], object if isinstance(value, bytes) else None)
    for array in given:
        if np.may_share_memory(value, array):
            return value.copy()
    return value
