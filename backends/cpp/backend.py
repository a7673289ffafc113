"""The backend of models whose `libtriton_<name>.so` was written for Triton's backend API.

The library is loaded into the replica, whose process a crash of it ends: that of one model version alone. The
order of calls is Triton's. What differs is said in docs/models/cpp_backends.md.
"""

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from ctypes import byref, c_size_t, string_at
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.buffers import allocate
from app.core.config.normalise import MAX_INSTANCES
from app.core.config.text import parse_config_json
from app.core.errors import InferError, internal
from app.core.tensors import SequenceId
from backends.base import Backend, Instance, Model, Request
from backends.cpp.configuration import config_text, merged
from backends.cpp.elf import library_fault
from backends.cpp.events import Events
from backends.cpp.library import check, failure_of, make, read, shim
from backends.cpp.requests import RequestEncoder, address_of

logger = logging.getLogger(__name__)

_KINDS: Final = {"AUTO": 0, "CPU": 1, "GPU": 2, "MODEL": 3}
"""By the numbers of TRITONSERVER_InstanceGroupKind."""
_LARGEST_ARENA: Final = 256 << 20
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


@cache
def events() -> Events:
    """Return the events of this process."""
    return Events()


class _LoadedModel:
    """A model version in its backend's library; `loading` is held while an instance loads."""

    def __init__(self, backend: int, model: Model, auto_complete: bool) -> None:
        self._library = shim()
        self.backend = backend
        self.loading = threading.Lock()
        self._declared = config_text(model.config)
        about = (model.name, model.version, str(model.directory.absolute()), self._declared, auto_complete)
        message = _encode(about)
        self.handle = make(self._library.nereid_model_new, backend, message, len(message))
        self.encoder: RequestEncoder | None = None
        try:
            check(self._library.nereid_model_initialize(self.handle))
        except InferError:
            self.close()
            raise

    def completed(self, config: mc.ModelConfig) -> mc.ModelConfig:
        """Return the configuration with what the backend has set; see `Backend.auto_complete`."""
        text = self._library.nereid_model_config(self.handle).decode()
        return config if text == self._declared else merged(config, parse_config_json(text))

    def configure(self, model: Model) -> None:
        """Tell the library the final configuration."""
        self.encoder = RequestEncoder(model)
        states = [
            (state.output_name, state.input_name if state.use_same_buffer_for_input_output else "")
            for state in model.config.sequence_batching.state
        ]
        decoupled = model.config.model_transaction_policy.decoupled
        iterative = model.config.sequence_batching.iterative_sequence
        message = _encode((config_text(model.config), decoupled, iterative, states))
        check(self._library.nereid_model_configure(self.handle, message, len(message)))

    def close(self) -> None:
        """Finalize the model."""
        try:
            check(self._library.nereid_model_finalize(self.handle))
        finally:
            self._library.nereid_model_delete(self.handle)


class _LoadedInstance:
    """An instance in the library."""

    def __init__(self, instance: Instance) -> None:
        loaded: _LoadedModel = instance.model.state
        assert loaded.encoder is not None
        self._library = shim()
        self._encoder = loaded.encoder
        self._arena_size = 0
        self._size = c_size_t()
        message = _encode(_described(instance))
        self.handle = make(self._library.nereid_instance_new, loaded.handle, message, len(message))
        try:
            check(self._library.nereid_instance_initialize(self.handle))
        except InferError:
            self.close()
            raise

    def execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        """Execute a batch by one call, and give the responses that it has made to their requests."""
        known = events()
        known.set_log_levels()
        message = self._encoder.batch([request.infer for request in requests])
        arena = allocate(self._arena_size) if self._arena_size else None
        address = address_of(arena) if arena is not None else None
        tokens = known.register(requests, instance.model, arena)
        result = self._library.nereid_execute(
            self.handle, message, len(message), tokens.start, address, self._arena_size, byref(self._size)
        )
        reply = string_at(result, self._size.value)
        if not reply:
            text = string_at(result).decode(errors="replace")
            raise internal(f"unable to execute on instance '{instance.name}': {text}")
        (code, text, instance.compute_start_ns, instance.compute_end_ns, wanted), happened = _decode(reply)
        self._arena_size = min(wanted, _LARGEST_ARENA)
        known.deliver(happened, tokens.start, requests)
        if code >= 0:
            raise failure_of(code, text).error()
        if not instance.model.config.model_transaction_policy.decoupled:
            known.detach(tokens)

    def end_sequence(self, sequence_id: SequenceId) -> None:
        """Drop the buffers of a sequence's states; the library names it by such a text."""
        name = (f"t{sequence_id}" if isinstance(sequence_id, str) else str(sequence_id)).encode()
        self._library.nereid_sequence_end(self.handle, name, len(name))

    def ready(self) -> bool:
        """Whether the backend says that the instance could execute."""
        try:
            check(self._library.nereid_instance_ready(self.handle))
        except InferError as error:
            logger.warning("instance is not ready: %s", error)
            return False
        return True

    def close(self) -> None:
        """Finalize the instance."""
        try:
            check(self._library.nereid_instance_finalize(self.handle))
        finally:
            self._library.nereid_instance_delete(self.handle)


class CppBackend(Backend):
    """Executes models by a library; a subclass for each library, made by `library_backend`.

    Attributes:
        name: the backend's name.
        path: the library.
    """

    name: ClassVar[str]
    path: ClassVar[Path]
    _handle: ClassVar[int] = 0
    _users: ClassVar[int] = 0
    _opening: ClassVar[threading.Lock]

    @classmethod
    def preferred_groups(cls, config: Mapping[str, str], auto_complete: bool) -> list[mc.ModelInstanceGroup]:
        groups = _decode(read(shim().nereid_preferred_groups, cls._open(config, auto_complete)))
        return [_group(*group) for group in groups]

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        model.state = _LoadedModel(cls._open(model.backend_config, True), model, auto_complete=True)
        completed: mc.ModelConfig = model.state.completed(model.config)
        return completed

    @classmethod
    def inspect(cls, model: Model) -> bool:
        if fault := library_fault(cls.path):
            raise internal(f"unable to load shared library: '{cls.path}': {fault}")
        return False

    def initialize(self, config: Mapping[str, str]) -> None:
        self._open(config, False)
        type(self)._users += 1

    def finalize(self) -> None:
        kind = type(self)
        with kind._opening:
            kind._users -= 1
            if kind._users:  # another model of this process
                return
            handle, kind._handle = kind._handle, 0
        check(shim().nereid_backend_finalize(handle))
        shim().nereid_backend_delete(handle)

    def model_initialize(self, model: Model) -> None:
        if model.state is None:
            model.state = _LoadedModel(self._handle, model, auto_complete=False)
        model.state.configure(model)

    def model_finalize(self, model: Model) -> None:
        loaded, model.state = model.state, None
        loaded.close()

    def instance_initialize(self, instance: Instance) -> None:
        loaded: _LoadedModel = instance.model.state
        if shim().nereid_loads_in_parallel(loaded.backend):
            instance.state = _LoadedInstance(instance)
            return
        with loaded.loading:
            instance.state = _LoadedInstance(instance)

    def instance_finalize(self, instance: Instance) -> None:
        loaded, instance.state = instance.state, None
        loaded.close()

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        loaded: _LoadedInstance = instance.state
        loaded.execute(instance, requests)

    def sequence_finalize(self, instance: Instance, sequence_id: SequenceId) -> None:
        loaded: _LoadedInstance = instance.state
        loaded.end_sequence(sequence_id)

    def instance_ready(self, instance: Instance) -> bool:
        loaded: _LoadedInstance = instance.state
        return loaded.ready()

    def readiness_varies(self, instance: Instance) -> bool:
        loaded: _LoadedModel = instance.model.state
        return bool(shim().nereid_has_readiness(loaded.backend))

    def metrics(self) -> list[Any]:
        found: list[Any] = _decode(read(shim().nereid_metrics))
        return found

    @classmethod
    def _open(cls, config: Mapping[str, str], auto_complete: bool) -> int:
        """Load the library and initialize the backend, once."""
        with cls._opening:
            if not cls._handle:
                events().set_log_levels()
                folder = cls.path.parent
                settings = _settings(config, folder.parent, auto_complete)
                texts = (str(cls.path), cls.name, str(folder), settings)
                encoded = [text.encode() for text in texts]
                cls._handle = make(shim().nereid_backend_new, *encoded)
            return cls._handle


@cache
def library_backend(name: str, path: Path) -> type[CppBackend]:
    """Return the backend whose library is the file `path`."""
    return type("TritonBackend", (CppBackend,), {"name": name, "path": path, "_opening": threading.Lock()})


def _settings(config: Mapping[str, str], directory: Path, auto_complete: bool) -> str:
    """Return the settings of a backend as TRITONBACKEND_BackendConfig has them."""
    common = {
        "auto-complete-config": str(auto_complete).lower(),
        "backend-directory": str(directory),
        "min-compute-capability": "6.000000",
        "default-max-batch-size": "4",
    }
    return json.dumps({"cmdline": {**common, **config}})


def _described(instance: Instance) -> tuple[Any, ...]:
    name = f"gpu_{instance.device_id}" if instance.kind == "GPU" else instance.kind.lower()
    devices = [(device.kind, device.device_id) for device in instance.secondary_devices]
    policy = json.dumps({name: dict(instance.host_policy)})
    about = (instance.name, _KINDS[instance.kind], instance.device_id, instance.passive)
    return (*about, policy, list(instance.profiles), devices)


def _group(kind: int, count: int, gpus: Sequence[int]) -> mc.ModelInstanceGroup:
    names = {number: name for name, number in _KINDS.items()}
    number = mc.ModelInstanceGroup.Kind.Value(f"KIND_{names[kind]}")
    return mc.ModelInstanceGroup(kind=number, count=min(count, MAX_INSTANCES), gpus=gpus)
