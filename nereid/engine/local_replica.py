"""Model versions loaded in this process, in place of Serve's replicas."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from app.core.observability.statistics import CustomFamily
from app.transport.loops.thread import LoopThread
from backends.python.api import metrics
from deployments.replica.assembly import Assembled, assemble
from deployments.replica.control import ReplicaHandler
from deployments.replica.loading import labels_of, text_of
from deployments.replica.materialize import LocalCopy, materialize_model
from deployments.replica.served_model import ServedModel
from deployments.scheduling.dynamic.serve_batch import without_serve
from deployments.spec import UPDATE, Description, ModelSpec
from nereid.engine.local_channel import HERE, LocalChannel

_POLL_S: Final = 0.01


class _Handler(ReplicaHandler):
    """The handler of a model that shares its process, whose custom metrics are not the model's alone."""

    async def _custom_metrics(self) -> list[CustomFamily]:
        found = await super()._custom_metrics()
        of_process = {family[0] for family in metrics.snapshot()}
        return [family for family in found if family.name not in of_process]


class LocalReplica:
    """A loaded model version. Made by `load`, in any thread but the loop's; the rest runs on the loop."""

    def __init__(self, local: LocalCopy, assembled: Assembled[LocalChannel]) -> None:
        """Use `load` instead."""
        self.served, self.channel = assembled.served, assembled.end
        self._local = local
        self._assembled = assembled

    @classmethod
    def load(cls, spec: ModelSpec, plane: LoopThread) -> "LocalReplica":
        """Fetch the model's files and load it. Blocks.

        Raises:
            InferError: the model cannot be served.
        """
        local = materialize_model(spec)
        try:
            return cls(local, assemble(local.spec, plane, without_serve, _make_channel))
        except BaseException:
            local.release()
            raise

    def description(self, spec: ModelSpec) -> Description:
        """Describe the load of a spec; reads the labels of classes."""
        spec = msgspec.structs.replace(spec, config=self.served.instances.declared)
        model = self.served.model
        return Description(
            spec,
            self.served.config.SerializeToString(),
            labels_of(model),
            text=text_of(model),
        )

    async def close(self, grace_s: float) -> None:
        """Unload once no request is in flight, or after some seconds."""
        self.channel.retire()
        deadline = time.monotonic() + grace_s
        while self.channel.outstanding and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        self.channel.close()
        await self._assembled.close()
        self._local.release()


def _make_channel(served: ServedModel) -> LocalChannel:
    return LocalChannel(_Handler(served, node=HERE), served.model.name)


class LocalApplications:
    """The model versions of this process; `deployments.manager.loading.deployer.Applications`.

    All methods run on the data-plane loop.

    Attributes:
        replicas: the loaded versions, by application.
    """

    def __init__(self, plane: LoopThread, grace_s: float) -> None:
        """`grace_s` are the seconds that a version's requests have to end when it is unloaded."""
        self.replicas: dict[str, LocalReplica] = {}
        self._plane = plane
        self._grace_s = grace_s
        # Apart from asyncio's default threads: loads take seconds, and may themselves wait for such a thread.
        self._threads = ThreadPoolExecutor(64, "model-load")

    async def deploy(self, spec: ModelSpec) -> Description:
        """Load a version; a failure of the load is in the description."""
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        loading = loop.run_in_executor(self._threads, LocalReplica.load, spec, self._plane)
        try:
            replica = await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(self._discard)  # a thread cannot be killed
            raise
        except Exception as error:
            return Description.of_failure(spec, error)
        self.replicas[spec.application] = replica
        described = await asyncio.to_thread(replica.description, spec)
        return msgspec.structs.replace(described, load_seconds=time.monotonic() - started)

    def _discard(self, loading: "asyncio.Future[LocalReplica]") -> None:
        if not loading.cancelled() and loading.exception() is None:
            self._closing = asyncio.ensure_future(loading.result().close(0))

    async def update(self, spec: ModelSpec, previous: ModelSpec) -> Description:
        """Change the instances of a version."""
        replica = self.replicas[spec.application]
        await replica.channel.control(UPDATE, spec.config)
        return await asyncio.to_thread(replica.description, spec)

    async def delete(self, application: str, kill: bool = False) -> bool:
        """Unload a version, if it is loaded."""
        replica = self.replicas.pop(application, None)
        if replica is not None:
            await replica.close(0 if kill else self._grace_s)
        return True

    async def stops(self) -> bool:
        """Return False: the engine ends its loads before it stops."""
        return False

    async def running_replicas(self, application: str, deployment: str) -> int:
        """Return 0: nobody else routes by this process's tables."""
        return 0

    async def close(self) -> None:
        """Unload everything."""
        await asyncio.gather(*(self.delete(application) for application in list(self.replicas)))
        self._threads.shutdown(wait=False)
