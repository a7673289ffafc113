"""Executes models of a built-in backend in a process of another environment: the process's side.

It is the module that a replica executes too, with the same model, instances and requests; nothing of it is
written twice. Requests arrive one by one, and the backend joins them here.
"""

import base64
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.core.errors import InferError, internal, unsupported
from app.core.installed.installation import requirements_command
from app.core.tensors import SequenceId
from backends.base import Backend, Instance, Model, Request, SecondaryDevice
from backends.hosted import schema
from backends.hosted.instance import HostedInstance
from backends.python.execution.structs import import_ours


class _Hosted:
    """A model with its backend, shared by the instances in this process."""

    def __init__(self, described: HostedInstance) -> None:
        self.model = _model(described)
        self.backend: Backend = _backend(described)()
        self.users = 0
        self.backend.initialize(self.model.backend_config)
        self.backend.model_initialize(self.model)

    def close(self) -> None:
        self.backend.model_finalize(self.model)
        self.backend.finalize()


_lock = threading.Lock()
_hosted: list[_Hosted] = []
"""The process's model, if it is loaded."""


class Execution:
    """A loaded instance."""

    tells_readiness = False

    def __init__(self, described: HostedInstance) -> None:
        """Load the instance, and the model before the first.

        Raises:
            InferError: the backend's, as in a replica; UNSUPPORTED where the environment lacks the framework.
        """
        self.decoupled = described.decoupled
        with _in_plain_words():
            with _lock:
                if not _hosted:
                    _hosted.append(_Hosted(described))
                self._hosted = _hosted[0]
                self._hosted.users += 1
            self._instance = _instance(self._hosted.model, described)
            try:
                self._hosted.backend.instance_initialize(self._instance)
            except BaseException:
                self._leave()
                raise

    def execute(self, requests: Sequence[Request], clock: Any) -> None:
        """Execute one batch; the backend replies to its requests."""
        instance = self._instance
        instance.compute_start_ns = instance.compute_end_ns = 0
        with _in_plain_words():
            self._hosted.backend.instance_execute(instance, requests)
        clock.compute_start_ns, clock.compute_end_ns = instance.compute_start_ns, instance.compute_end_ns

    def finalize_sequence(self, sequence_id: SequenceId) -> None:
        """Drop the state of a sequence."""
        self._hosted.backend.sequence_finalize(self._instance, sequence_id)

    def is_ready(self) -> bool:
        """Whether the instance could execute now."""
        return self._hosted.backend.instance_ready(self._instance)

    def close(self) -> None:
        """Unload the instance, and the model after the last."""
        self._hosted.backend.instance_finalize(self._instance)
        self._leave()

    def _leave(self) -> None:
        with _lock:
            self._hosted.users -= 1
            if not self._hosted.users:
                _hosted.clear()
                self._hosted.close()


def described(fields: dict[str, Any]) -> HostedInstance:
    """Return an instance by the fields that another process has sent."""
    return HostedInstance(**fields)


def completed(described: HostedInstance) -> str:
    """Return the serialised configuration, in base64, after the backend's `auto_complete`."""
    with _in_plain_words():
        config = _backend(described).auto_complete(_model(described))
    return base64.b64encode(config.SerializeToString()).decode()


def _model(described: HostedInstance) -> Model:
    with _named(described):
        configs = schema.install(base64.b64decode(described.schema))
    config = configs.ModelConfig.FromString(base64.b64decode(described.config))
    return Model(config, described.version, Path(described.directory), described.settings)


def _backend(described: HostedInstance) -> type[Backend]:
    module, _, name = described.place.partition(":")
    with _named(described):
        schema.install(base64.b64decode(described.schema))
        found: type[Backend] = getattr(import_ours(module), name)
        return found


def _instance(model: Model, described: HostedInstance) -> Instance:
    about = (described.name, described.kind, described.device_id, described.index, described.passive)
    instance = Instance(
        model, *about, secondary_devices=[SecondaryDevice(*each) for each in described.secondary_devices]
    )
    instance.profiles = tuple(described.profiles)
    instance.host_policy = described.host_policy
    return instance


@contextmanager
def _named(described: HostedInstance) -> Iterator[None]:
    """Name what the environment lacks, and the command that installs it."""
    try:
        yield
    except ImportError as error:
        missing = error.name or ""
        title = described.frameworks.get(missing, missing)
        if not title:
            raise
        raise unsupported(
            f"backend '{described.backend}' needs {title}, which the environment {sys.prefix} does not have:"
            f" {requirements_command(described.requirements)}"
        ) from error


@contextmanager
def _in_plain_words() -> Iterator[None]:
    """Report an exception as a replica does, by its text alone."""
    try:
        yield
    except InferError:
        raise
    except Exception as error:
        raise internal(str(error) or type(error).__name__) from error
