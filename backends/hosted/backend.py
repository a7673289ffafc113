"""Models of a built-in backend in a process of another environment: the replica's side.

The replica imports nothing of the framework. The process executes the backend's own module
(`backends.hosted.execution`), all instances in one process with what they share.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tritonclient.grpc import model_config_pb2 as mc

from backends.base import Backend, Begun, Instance, Model, Request
from backends.hosted.instance import HostedInstance
from backends.python.worker.backend import WorkerBackend, completed_there

_SCHEMA: Final = base64.b64encode(mc.DESCRIPTOR.serialized_pb).decode()


class HostedBackend(WorkerBackend):
    """Executes the models of one backend; made by `hosted`.

    Attributes:
        backend, place, frameworks, requirements: see `HostedInstance`.
    """

    shares_process = True  # as in a replica
    backend: str
    place: str
    frameworks: Mapping[str, str]
    requirements: Path

    def instance_initialize(self, instance: Instance) -> None:
        self.supervise(instance, self._described(instance.model, instance))

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        instance.state.execute(requests, instance)

    def instance_begin(self, instance: Instance, requests: Sequence[Request]) -> Begun | None:
        begun: Begun | None = instance.state.begin(requests, instance)
        return begun

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        completed: str = completed_there(model, cls._described(model))
        return mc.ModelConfig.FromString(base64.b64decode(completed))

    @classmethod
    def _described(cls, model: Model, instance: Instance | None = None) -> HostedInstance:
        about: dict[str, Any] = {"name": model.name}
        if instance is not None:
            names = ("name", "kind", "device_id", "index", "passive")
            about = {name: getattr(instance, name) for name in names}
            about["profiles"] = list(instance.profiles)
            about["secondary_devices"] = [tuple(each) for each in instance.secondary_devices]
            about["host_policy"] = dict(instance.host_policy)
        return HostedInstance(
            model_name=model.name,
            version=model.version,
            directory=str(model.directory.absolute()),
            backend=cls.backend,
            place=cls.place,
            frameworks=dict(cls.frameworks),
            requirements=str(cls.requirements),
            settings=model.backend_config,
            config=base64.b64encode(model.config.SerializeToString()).decode(),
            schema=_SCHEMA,
            decoupled=model.config.model_transaction_policy.decoupled,
            **about,
        )


def hosted(backend: str, place: str, frameworks: Mapping[str, str], requirements: Path) -> type[Backend]:
    """Return the class that executes models of a backend in processes."""
    attributes = {
        "backend": backend,
        "place": place,
        "frameworks": frameworks,
        "requirements": requirements,
    }
    return type("HostedBackend", (HostedBackend,), attributes)
