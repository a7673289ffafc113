"""The channels to the replicas of one model application."""

import asyncio
import logging
import math
import random
from collections import Counter
from functools import partial
from operator import itemgetter
from typing import Any

from app.core.inference import Sink
from app.core.prompt_prefixes import first_with_room
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest, SequenceId
from app.ray_adapter.serve.replicas import ReplicaAddress
from app.routing.sequence_call import rank
from app.transport.channel.busy import ask_busy
from app.transport.channel.client import Channel, ChannelCall
from app.transport.memory.client_regions import with_inlined_regions
from app.transport.settings import TransportSettings

logger = logging.getLogger(__name__)

_RETRY_S = (0.02, 1.0)
"""Least and longest time between attempts to connect."""
_RETRY_SHARE = 0.1
"""The time between attempts as a part of the time for which the replica has been away."""


def retry_delay(away_s: float) -> float:
    """Return when to try again to connect: soon after a replica's end, for its process may be back soon."""
    return max(_RETRY_S[0], min(_RETRY_S[1], away_s * _RETRY_SHARE))


class ReplicaPool:
    """Keeps a channel open to each replica that Serve lists, and chooses one for each request.

    All methods but `update_from_thread` run on the data-plane loop.
    """

    def __init__(
        self, model: str, node_id: str, key: bytes, settings: TransportSettings, repeatable: bool = False
    ) -> None:
        """`repeatable` allows to execute a request again at another replica, when one cannot be reached."""
        self._repeatable = repeatable
        self.repeats = False
        """Whether that can happen now, since there are several replicas."""
        self._model = model
        self._node_id = node_id
        self._key = key
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._wanted: dict[str, ReplicaAddress] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._channels: dict[str, Channel] = {}
        self._open: list[Channel] = []
        self._preferred: list[Channel] = []  # the open ones whose model is ready, or the best there are
        self._changed = asyncio.Event()
        self._closed = False
        self._lost_at = -math.inf
        self._loss = ""  # how the last replica was lost
        self.losses: Counter[str] = Counter()
        """Replicas lost, by how they ended."""
        self._last_control: tuple[str, Any] | None = None
        self._control_tasks = Tasks()

    @property
    def available(self) -> bool:
        """Whether a request could be sent now to a replica that reports its model ready."""
        if self._closed:
            return False
        return any(channel.ready and not (channel.draining or channel.closing) for channel in self._open)

    @property
    def incomplete(self) -> bool:
        """Whether a replica that Serve lists is not connected: it has just started, or is out of reach."""
        return any(replica_id not in self._channels for replica_id in self._wanted)

    @property
    def trouble(self) -> str:
        """Why requests cannot be sent now, as far as that is known."""
        suspected = [f"replica {name}: {c.suspected}" for name, c in self._channels.items() if c.suspected]
        return "; ".join(suspected if self._open else [self._loss])

    @property
    def channels(self) -> list[Channel]:
        """Open channels, draining ones included."""
        return list(self._open)

    @property
    def outstanding(self) -> int:
        """Requests in flight from here."""
        return sum(channel.outstanding for channel in self._open)

    def local_channels(self) -> list[Channel]:
        """Return the open channels to replicas on this node."""
        return [
            channel
            for replica_id, channel in self._channels.items()
            if self._wanted.get(replica_id, _NOWHERE).node_id == self._node_id
        ]

    def send(self, request: InferRequest, sink: Sink) -> ChannelCall | None:
        """Send to the replica with the fewest requests in flight; return None when no replica is usable."""
        best: Channel | None = None
        for channel in self._preferred:
            if channel.draining or channel.closing:
                continue
            if best is None or channel.outstanding < best.outstanding:
                best = channel
        return None if best is None else _submitted(best, request, sink)

    def send_near(self, prefix: str, request: InferRequest, sink: Sink) -> ChannelCall | None:
        """Send to the replica that gets the prompts with a beginning; return None when none is usable."""
        ordered = [channel for channel in self.channels_for(prefix) if channel in self._preferred]
        if not ordered:
            return None
        return _submitted(ordered[first_with_room([each.outstanding for each in ordered])], request, sink)

    def channels_for(self, sequence_id: SequenceId) -> list[Channel]:
        """Return the usable replicas in the order to try for a sequence or a prompt; it starts at the first.

        Rendezvous hashing: every process that knows the same replicas computes the same order, and a replica
        that is added or lost moves no sequence between two others. One that does not answer is the last.
        """
        usable = [
            ((bool(channel.suspected), rank(replica_id, sequence_id)), channel)
            for replica_id, channel in self._channels.items()
            if not (channel.draining or channel.closing)
        ]
        usable.sort(key=itemgetter(0))
        return [channel for _, channel in usable]

    def lost_within(self, seconds: float) -> bool:
        """Return whether a replica was lost within the last `seconds`, other than by a drain."""
        return self._loop.time() - self._lost_at < seconds

    def broadcast_control(self, verb: str, payload: Any) -> None:
        """Make a control call to every replica, also to those that connect later."""
        self._last_control = verb, payload
        for channel in self._open:
            self._send_control(channel, verb, payload)

    def _send_control(self, channel: Channel, verb: str, payload: Any) -> None:
        task = self._control_tasks.start(channel.control(verb, payload))
        task.add_done_callback(self._on_control_done)

    def _on_control_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.debug("control call to a replica of %s: %s", self._model, task.exception())

    def update_from_thread(self, replicas: tuple[ReplicaAddress, ...]) -> None:
        """Apply Serve's list of replicas; may be called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._update, replicas)
        except RuntimeError:  # the loop is closed: the process is exiting
            logger.debug("replica update for %s after shutdown", self._model)

    async def wait_available(self, timeout: float) -> bool:
        """Wait until a request could be sent, whether or not a replica reports its model ready."""
        try:
            async with asyncio.timeout(timeout):
                while not any(not (channel.draining or channel.closing) for channel in self._open):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, grace: float) -> None:
        """Stop connecting; close all channels once no request is in flight, or after `grace` seconds."""
        self._closed = True
        self._preferred = []  # those that have resolved to it are sent elsewhere
        self._wanted = {}
        for task in self._tasks.values():
            task.cancel()
        deadline = self._loop.time() + grace
        while any(channel.outstanding for channel in self._open) and self._loop.time() < deadline:
            await asyncio.sleep(0.02)
        for channel in list(self._open):
            channel.close()

    def _update(self, replicas: tuple[ReplicaAddress, ...]) -> None:
        if self._closed:  # called from another thread before the pool was closed
            return
        self._wanted = {replica.replica_id: replica for replica in replicas}
        for replica_id in self._wanted:
            if replica_id not in self._tasks or self._tasks[replica_id].done():
                task = self._loop.create_task(self._keep_connected(replica_id))
                self._tasks[replica_id] = task
                task.add_done_callback(partial(self._on_task_done, replica_id))
        for replica_id, channel in list(self._channels.items()):
            if replica_id not in self._wanted:
                channel.retire()

    def _on_task_done(self, replica_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(replica_id) is task:  # not one that was started since it has ended
            del self._tasks[replica_id]
        if not task.cancelled() and task.exception() is not None:
            logger.error("connecting to a replica of '%s': %s", self._model, task.exception())

    async def _keep_connected(self, replica_id: str) -> None:
        lost_at = self._loop.time()
        while replica_id in self._wanted:
            closed = asyncio.Event()
            try:
                channel = await self._connect(replica_id, closed)
            except (OSError, TimeoutError) as error:
                logger.debug("connecting to %s of %s: %s", replica_id, self._model, error)
            else:
                self._add_channel(replica_id, channel)
                await closed.wait()
                lost_at = self._loop.time()
            delay = retry_delay(self._loop.time() - lost_at)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    async def _connect(self, replica_id: str, closed: asyncio.Event) -> Channel:
        replica = self._wanted[replica_id]

        def on_close(channel: Channel, cause: BaseException | None) -> None:
            self._remove_channel(replica_id, channel)
            if cause is not None:
                self._lost_at = self._loop.time()
                self._loss = f"replica {replica_id}: {channel.suspected}"
                self.losses[_kind_of_loss(channel.suspected)] += 1
            closed.set()

        host = replica.host(self._node_id)
        return await Channel.connect(
            replica.best(self._node_id),
            self._key,
            self._settings,
            on_close=on_close,
            on_readiness=self._update_preferred,
            lost_text=partial(self._lost_text, replica_id),
            ask_busy=partial(ask_busy, host, self._key) if host else None,
        )

    def _lost_text(self, replica_id: str, cause: str) -> str:
        return f"model '{self._model}': connection to its replica lost: {replica_id}: {cause}"

    def _add_channel(self, replica_id: str, channel: Channel) -> None:
        if channel.closing:  # lost before this callback ran
            return
        if replica_id not in self._wanted:  # Serve dropped it meanwhile
            channel.retire()
            return
        self._channels[replica_id] = channel
        self._open = [*self._open, channel]
        if self._last_control is not None:
            self._send_control(channel, *self._last_control)
        self._update_preferred(channel)

    def _update_preferred(self, _: Channel) -> None:
        """Update the preferred channels: one was added or removed, or its model's readiness changed."""
        if self._closed:
            return
        self._preferred = (
            [channel for channel in self._open if channel.ready]
            or [channel for channel in self._open if not channel.suspected]
            or [channel for channel in self._open if not channel.unreachable]
        )
        self.repeats = self._repeatable and len(self._open) > 1
        self._changed.set()

    def _remove_channel(self, replica_id: str, channel: Channel) -> None:
        self._channels.pop(replica_id, None)
        self._open = [other for other in self._open if other is not channel]
        self._update_preferred(channel)


def _submitted(channel: Channel, request: InferRequest, sink: Sink) -> ChannelCall:
    if request.regions and not channel.local:  # a replica on another node cannot map the client's memory
        request, sink = with_inlined_regions(request, sink)
    return channel.send(request, sink)


def _kind_of_loss(text: str) -> str:
    """Return how a replica ended, without the id of its process: there are few such texts."""
    _, its_process, ending = text.partition("its process ")
    return ending.partition(" ")[2] if its_process else "connection lost"


_NOWHERE = ReplicaAddress("", "", "", "")
