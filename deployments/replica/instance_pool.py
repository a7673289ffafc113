"""The instances of a served model: loaded together, replaced while the model serves, unloaded at the end."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import copied
from app.core.config.rate_limit import Demand
from app.core.config.validation import validate_instances
from app.core.errors import InferError, internal
from app.core.installed.installation import SERVER_PYTHON
from app.core.system.tasks import Tasks
from app.transport.loops.thread import LoopThread
from app.transport.loops.watchdog import LoopWatchdog
from backends.base import Backend, Instance, Model
from backends.registry.configuration import normalise
from deployments.execution.execution_limit import ExecutionLimit, seconds_allowed
from deployments.execution.instance_groups import Placement, change, placements
from deployments.execution.instance_thread import InstanceThread
from deployments.execution.limited_instance import LimitedInstance
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.rate_limiting.client import Permits, RateLimiter
from deployments.replica.readiness import ReadinessWatch
from deployments.scheduling.base import Scheduler
from deployments.spec import ModelSpec

logger = logging.getLogger(__name__)


class _Placed(NamedTuple):
    """An instance, and the signature that matches it with a placement of a new configuration."""

    signature: bytes
    thread: InstanceThread


class InstancePool:
    """The instance threads of one scheduler.

    `load`, `update` and `close` block and are called from any thread but the loop's; the rest on the loop.

    Args:
        spec: the model version.
        model: the model with its complete configuration, which `update` replaces.
        backend: the initialized backend.
        plane: the thread of the data-plane loop.
        scheduler: forms the batches.
        responses: carries responses from the instance threads to the loop.
    """

    def __init__(
        self,
        spec: ModelSpec,
        model: Model,
        backend: Backend,
        plane: LoopThread,
        scheduler: Scheduler,
        responses: ResponseQueue,
    ) -> None:
        self.declared = spec.config
        """The serialised configuration that the manager sent last."""
        self.watchdog = LoopWatchdog(model.name)
        seconds = seconds_allowed(model.config, spec.server.backends.max_execution_s)
        self._limit = ExecutionLimit(model.name, seconds, backend, lambda: self._threads) if seconds else None
        self._spec = spec
        self._model = model
        self._backend = backend
        self._responses = responses
        self._plane = plane
        self._scheduler = scheduler
        self._limiter: RateLimiter | None = None
        self._placed: list[_Placed] = []
        self._leaving: set[InstanceThread] = set()
        self._tasks = Tasks()
        self._indices = itertools.count()
        self._changing = threading.Lock()

    @property
    def healthy(self) -> bool:
        """Whether every instance can still execute batches."""
        return all(placed.thread.alive for placed in self._placed)

    @property
    def instances(self) -> list[Instance]:
        """The instances, in the order of their placements."""
        return [placed.thread.instance for placed in self._placed]

    @property
    def _threads(self) -> list[InstanceThread]:
        return [*(placed.thread for placed in self._placed), *self._leaving]

    def load(self) -> None:
        """Load the instances of the model's configuration and warm them up.

        Raises:
            Exception: the rate limiter, the backend or a warm-up request refused an instance.
        """
        self._set_placed(self._start(placements(self._model.config)))

    async def open(self) -> None:
        """Start to execute submitted requests."""
        self._add_to_scheduler(self._placed)

    def stuck(self) -> str:
        """Return why the replica has to be replaced, for executions that do not end; empty if it has not."""
        return self.watchdog.check() or (self._limit.stuck if self._limit is not None else "")

    def watch_executions(self, announce: Callable[[bool], None]) -> None:
        """End executions that exceed the model's time limit, if it has one; on the loop."""
        if self._limit is not None:
            self._tasks.start(self._limit.watch(lambda: announce(False)))

    def watch_readiness(self, announce: Callable[[bool], None]) -> ReadinessWatch:
        """Return a watch on the readiness of the instances; `announce` as in `ReadinessWatch`."""
        return ReadinessWatch(self._backend, lambda: self.instances, announce)

    def update(self, declared: bytes) -> None:
        """Apply a change of the instance groups: load new instances, then drain and unload removed ones.

        Args:
            declared: the configuration as in `ModelSpec.config`; only its instance groups may have changed.

        Raises:
            InferError: the change was refused; the instances are as before.
        """
        config = copied(self._model.config)
        del config.instance_group[:]
        config.instance_group.extend(mc.ModelConfig.FromString(declared).instance_group)
        preferred = self._backend.preferred_groups(
            self._model.backend_config, self._spec.server.auto_complete
        )
        config = normalise(config, self._spec.gpus, preferred)
        validate_instances(config, self._spec.gpus)
        try:
            self._replace(config)
        except InferError:
            raise
        except Exception as error:
            logger.exception("updating the instances of model '%s'", self._model.name)
            raise internal(f"{type(error).__name__}: {error}") from error
        self.declared = declared

    def _replace(self, config: mc.ModelConfig) -> None:
        with self._changing:
            present = [(placed.signature, placed) for placed in self._placed]
            todo = change(present, placements(config))
            before, self._model.config = self._model.config, config
            # Python code shares no process: what is added beside an instance in this one gets its own.
            self._model.interpreter = self._model.interpreter or SERVER_PYTHON
            try:
                added = self._start(todo.added)
            except BaseException:
                self._model.config = before
                raise
            self._set_placed([*todo.kept, *added])
            self._plane.call(self._switch(added, todo.removed))

    def cancel(self, pending: QueuedRequest) -> None:
        """Cancel a request that executes or waits for a rate limiter's permit."""
        if self._limiter is not None:
            for _, thread in self._placed:
                if isinstance(thread, LimitedInstance):
                    thread.cancel(pending)

    def close(self, timeout: float) -> None:
        """Unload every instance, all at once; wait up to `timeout` seconds for each."""
        threads = self._threads
        for thread in threads:
            thread.end()
        for thread in threads:
            thread.stop(timeout)
        if self._limiter is not None:
            self._plane.call(self._limiter.close())

    def _set_placed(self, placed: list[_Placed]) -> None:
        self._placed = placed
        for each in placed:
            each.thread.is_only_instance = len(placed) == 1

    def _start(self, wanted: Sequence[Placement]) -> list[_Placed]:
        made = [_Placed(p.signature, self._thread(p, permits)) for p, permits in self._with_permits(wanted)]
        for placed in made:
            placed.thread.start()
        try:
            for placed in made:
                placed.thread.wait_loaded()
        except BaseException:
            for placed in made:
                placed.thread.stop(timeout=5)
                self._plane.loop.call_soon_threadsafe(placed.thread.on_removed)
            raise
        return made

    def _with_permits(self, wanted: Sequence[Placement]) -> list[tuple[Placement, Permits | None]]:
        """Register the instances whose execution needs resources with the rate limiter, if there is one."""
        demands = {
            number: demand
            for number, placement in enumerate(wanted)
            if self._spec.server.placement.rate_limits is not None
            and (demand := placement.demand) is not None
        }
        permits = self._plane.call(self._register(demands)) if demands else {}
        return [(placement, permits.get(number)) for number, placement in enumerate(wanted)]

    async def _register(self, demands: dict[int, Demand]) -> dict[int, Permits]:
        spec = self._spec
        if self._limiter is None:
            node = spec.server.placement
            self._limiter = RateLimiter(node.socket_directory, spec.key, node.rate_limits or {})
        return await self._limiter.register(demands)

    def _thread(self, placement: Placement, permits: Permits | None) -> InstanceThread:
        instance = placement.make_instance(self._model, next(self._indices))
        instance.host_policy = self._spec.server.placement.host_policies.get(placement.host_policy, {})
        scheduler, loop = self._scheduler, self._plane.loop
        common = (self._backend, instance, self._responses, loop, scheduler.finished, self.watchdog)
        if permits is None:
            thread = InstanceThread(*common)
        else:
            thread = LimitedInstance(*common, permits, lambda: scheduler.pending > 0, scheduler.begins)
        thread.has_time_limit = self._limit is not None
        if not instance.passive:
            instance.lost = partial(self._suspend, thread)
        return thread

    def _suspend(self, thread: InstanceThread, wait: Callable[[], object]) -> None:
        """Let an instance recover before it executes again; may be called from any thread."""
        try:
            self._plane.loop.call_soon_threadsafe(self._scheduler.suspend, thread, wait)
        except RuntimeError:  # the loop is closed: the replica is shutting down
            pass

    def _add_to_scheduler(self, added: Sequence[_Placed]) -> None:
        for _, thread in added:
            if not thread.instance.passive:
                self._scheduler.add_instance(thread)

    async def _switch(self, added: Sequence[_Placed], removed: Sequence[_Placed]) -> None:
        self._add_to_scheduler(added)
        for _, thread in removed:  # in the background: their requests may take any time to finish
            self._leaving.add(thread)
            self._tasks.start(self._remove(thread))

    async def _remove(self, thread: InstanceThread) -> None:
        if not thread.instance.passive:
            await self._scheduler.remove_instance(thread)
        thread.on_removed()
        await asyncio.to_thread(thread.stop, None)
        self._leaving.discard(thread)
        logger.info("removed instance %s of model '%s'", thread.instance.name, self._model.name)
