"""The instances of a served model: loaded together, changed while they serve, unloaded at the end."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.rate_limit import Demand
from app.transport.event_loop_thread import LoopThread
from backends.base import Backend, Instance, Model
from deployments.execution.instance_groups import Placement, change, placements
from deployments.execution.instance_thread import InstanceThread
from deployments.execution.limited_instance import LimitedInstance
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.rate_limiting.client import Permits, RateLimiter
from deployments.scheduling.base import Scheduler
from deployments.spec import ModelSpec

logger = logging.getLogger(__name__)


class _Placed(NamedTuple):
    """An instance and the signature by which a new configuration finds it again."""

    signature: bytes
    thread: InstanceThread


class InstancePool:
    """Threads that execute what one scheduler gives them.

    `load`, `update` and `close` block and are called from any thread but the loop's; the rest on the loop.

    Args:
        rank: the position of this replica among those of its model.
    """

    def __init__(
        self,
        spec: ModelSpec,
        model: Model,
        backend: Backend,
        outbox: ResponseQueue,
        plane: LoopThread,
        scheduler: Scheduler,
        rank: int,
    ) -> None:
        self._spec = spec
        self._model = model
        self._backend = backend
        self._outbox = outbox
        self._plane = plane
        self._scheduler = scheduler
        self._rank = rank
        self._limiter: RateLimiter | None = None
        self._placed: list[_Placed] = []
        self._leaving: set[InstanceThread] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._indices = itertools.count()
        self._changing = threading.Lock()

    @property
    def healthy(self) -> bool:
        """Whether every instance can still take batches."""
        return all(placed.thread.alive for placed in self._placed)

    @property
    def instances(self) -> list[Instance]:
        """What the threads execute."""
        return [placed.thread.instance for placed in self._placed]

    def load(self) -> None:
        """Load the instances of the model's configuration and warm them up.

        Raises:
            Exception: what the rate limiter, the backend or a warm-up request says against it.
        """
        self._settle(self._start(self._placements(self._model.config)))

    async def open(self) -> None:
        """Begin to execute what is submitted."""
        self._offer(self._placed)

    def update(self, config: mc.ModelConfig) -> None:
        """Follow a change of instance groups: new instances are loaded, then those not wanted finish and go.

        Raises:
            Exception: as `load`; then all is as it was.
        """
        with self._changing:
            present = [(placed.signature, placed) for placed in self._placed]
            todo = change(present, self._placements(config))
            before, self._model.config = self._model.config, config
            try:
                added = self._start(todo.added)
            except BaseException:
                self._model.config = before
                raise
            self._settle([*todo.kept, *added])
            self._plane.call(self._switch(added, todo.removed))

    def cancel(self, pending: QueuedRequest) -> None:
        """A request that executes, or waits for its turn to, was cancelled."""
        if self._limiter is not None:
            for _, thread in self._placed:
                if isinstance(thread, LimitedInstance):
                    thread.cancel(pending)

    def close(self, timeout: float) -> None:
        """Unload all; seconds for each."""
        for thread in (*(placed.thread for placed in self._placed), *self._leaving):
            thread.stop(timeout)
        if self._limiter is not None:
            self._plane.call(self._limiter.close())

    def _settle(self, placed: list[_Placed]) -> None:
        self._placed = placed
        for each in placed:
            each.thread.alone = len(placed) == 1

    def _placements(self, config: mc.ModelConfig) -> list[Placement]:
        return placements(config, self._rank, self._spec.backend_path)

    def _start(self, wanted: Sequence[Placement]) -> list[_Placed]:
        made = [_Placed(p.signature, self._thread(p, turns)) for p, turns in self._enrol(wanted)]
        for placed in made:
            placed.thread.start()
        try:
            for placed in made:
                placed.thread.wait_loaded()
        except BaseException:
            for placed in made:
                placed.thread.stop(timeout=5)
                self._plane.loop.call_soon_threadsafe(placed.thread.leave)
            raise
        return made

    def _enrol(self, wanted: Sequence[Placement]) -> list[tuple[Placement, Permits | None]]:
        """With their turns, where there is a rate limiter and an execution takes resources."""
        demands = {
            number: demand
            for number, placement in enumerate(wanted)
            if self._spec.rate_limits is not None and (demand := placement.demand) is not None
        }
        turns = self._plane.call(self._join(demands)) if demands else {}
        return [(placement, turns.get(number)) for number, placement in enumerate(wanted)]

    async def _join(self, demands: dict[int, Demand]) -> dict[int, Permits]:
        spec = self._spec
        if self._limiter is None:
            self._limiter = RateLimiter(spec.socket_directory, spec.key, spec.rate_limits or {})
        return await self._limiter.enrol(demands)

    def _thread(self, placement: Placement, turns: Permits | None) -> InstanceThread:
        instance = placement.instance(self._model, next(self._indices))
        instance.host_policy = policy = self._spec.host_policy.get(placement.host_policy, {})
        decoupled = self._model.config.model_transaction_policy.decoupled
        scheduler, loop = self._scheduler, self._plane.loop
        common = (self._backend, instance, self._outbox, decoupled, loop, scheduler.finished, policy)
        if turns is None:
            return InstanceThread(*common)
        return LimitedInstance(*common, turns, lambda: scheduler.pending > 0)

    def _offer(self, added: Sequence[_Placed]) -> None:
        for _, thread in added:
            if not thread.instance.passive:
                self._scheduler.add_instance(thread)

    async def _switch(self, added: Sequence[_Placed], removed: Sequence[_Placed]) -> None:
        """The old ones go when they have finished what they have, which nobody waits for."""
        self._offer(added)
        for _, thread in removed:
            self._leaving.add(thread)
            task = asyncio.get_running_loop().create_task(self._remove(thread))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _remove(self, thread: InstanceThread) -> None:
        if not thread.instance.passive:
            await self._scheduler.remove_instance(thread)
        thread.leave()
        await asyncio.to_thread(thread.stop, None)
        self._leaving.discard(thread)
        logger.info("instance %s of model '%s' is gone", thread.instance.name, self._model.name)
