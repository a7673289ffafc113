"""Watches what a server depends on: its node's raylet, the cluster's GCS, Serve's controller.

Each part is looked at, which shows at once that it has ended or was stopped, and asked, which shows that it
hangs, or that it is on another node and out of reach.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from app.core.system.processes import Process, arguments, find, process

_LOOK_S: Final = 0.25
_ASK_S: Final = 2.0
_SERVER_ANSWER_S: Final = 5.0
"""Time for the raylet and the GCS to answer, which are rarely busy themselves, on a busy machine."""
_ACTOR_ANSWER_S: Final = 10.0
"""Time for the controller and other actors: one with hundreds of replicas takes seconds for a round."""
_RECONNECT_MS: Final = 1000
_CONTROLLER: Final = "SERVE_CONTROLLER_ACTOR"

Ask = Callable[[], Awaitable[Process | None]]
"""Asks a part something; returns the process that has answered if it is known and on this machine."""
Tell = Callable[[str], object]
"""Takes the description of what is wrong, "" for nothing."""


async def next_turn(period_s: float) -> None:
    """Sleep until the next multiple of a period, at which others with the same period wake up too.

    Each question over gRPC keeps the threads of its library awake for a second; those at one time do so once.
    """
    await asyncio.sleep(period_s - time.monotonic() % period_s)


class Part:
    """Something that a server cannot do without, and what is wrong with it at present.

    Args:
        name: as users know it.
        ask: asks it; an exception is no answer.
        answer_s: time for an answer.
        process: its process, if it is known and on this machine.
        log: how Ray names its log files.
        close: ends the connection that it is asked by.

    Attributes:
        fault: what is wrong ("has ended"); "" for nothing.
        since: the moment from which on that is so (`time.monotonic`).
    """

    def __init__(
        self,
        name: str,
        ask: Ask,
        answer_s: float,
        process: Process | None = None,
        log: str = "",
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.log = log
        self.fault = ""
        self.since = 0.0
        self.process = process
        self._ask = ask
        self._close = close
        self._answer_s = answer_s
        self._silent = False
        self._unheard_since = 0.0
        self._known = False

    def look(self, now: float) -> None:
        """Bring `fault` up to date."""
        fault = self.process.fault if self.process is not None else ""
        if not fault and self._silent:
            fault = "does not answer"
        if fault and not self.fault:
            self.since = now
        self.fault = fault

    def lasts(self, seconds: float, now: float) -> bool:
        """Return whether something is wrong for so long."""
        return bool(self.fault) and now - self.since >= seconds

    def is_away(self, seconds: float, now: float) -> bool:
        """Return whether it has been of no use for so long; one that is silent, since it was asked."""
        since = min(self.since, self._unheard_since) if self._silent else self.since
        return bool(self.fault) and now - since >= seconds

    async def keep_asking(self) -> None:
        """Ask again and again, one question at a time; close the connection when this is cancelled."""
        try:
            await self._keep_asking()
        finally:
            self._close()

    async def _keep_asking(self) -> None:
        while True:
            asked = time.monotonic()
            question = asyncio.ensure_future(self._ask())
            question.add_done_callback(_retrieve)
            answered, _ = await asyncio.wait({question}, timeout=self._answer_s)
            if not answered:
                self._miss(asked)
                await asyncio.wait({question})
            try:
                self.process = question.result() or self.process
                self._silent, self._known = False, True
            except Exception:
                self._miss(asked)
            await self._next_question()

    def _miss(self, asked: float) -> None:
        """Note that a question has no answer; what has never answered may be out of reach by design."""
        if self._known and not self._silent:
            self._silent, self._unheard_since = True, asked

    async def _next_question(self) -> None:
        """Wait for the turn of the next question.

        What is wrong with a process that is looked at shows without one, unless it hangs: there is time.
        """
        await next_turn(_ASK_S)
        if self.process is not None and not (self._silent or self.process.fault):
            await next_turn(2 * _ASK_S)


def _retrieve(question: asyncio.Future[Process | None]) -> None:
    """Take the exception of a question nobody waits for any longer: asyncio would log it."""
    if not question.cancelled():
        question.exception()


class ClusterHealth:
    """Watches the parts that a server stands on.

    Args:
        parts: what is watched.
        changed: called with the description of what is wrong, "" for nothing, whenever it changes.
    """

    def __init__(self, parts: Sequence[Part], changed: Tell = lambda fault: None) -> None:
        self._parts = parts
        self._changed = changed
        self.fault = ""

    async def watch(self) -> None:
        """Watch, for ever."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts:
                group.create_task(part.keep_asking())
            while True:
                self.look(time.monotonic())
                await next_turn(_LOOK_S)

    def lasting(self, seconds: float, now: float) -> str:
        """Return what has been of no use for so long; "" for nothing."""
        return ", ".join(f"{part.name} {part.fault}" for part in self._parts if part.is_away(seconds, now))

    def look(self, now: float) -> None:
        """Bring `fault` up to date."""
        for part in self._parts:
            part.look(now)
        fault = self.lasting(0.0, now)
        if fault != self.fault:
            self.fault = fault
            self._changed(fault)


def server_health(manager: Part, many_nodes: bool, unready: Tell, degraded: Tell) -> list[ClusterHealth]:
    """Return the watches over what a server stands on.

    With many nodes the loss of one, be it the head, must not take the others out of rotation: models are
    served without it. Ray ends the raylet of a node that misses the head for too long.

    Args:
        manager: the repository manager.
        many_nodes: other nodes have ingresses too.
        unready: called with what makes the server unready, see `ClusterHealth`.
        degraded: called with what only keeps models from being loaded, unloaded and replaced.
    """
    raylet, gcs = node_parts()
    others = [gcs, controller_part(), manager]
    if many_nodes:
        return [ClusterHealth([raylet], unready), ClusterHealth(others, degraded)]
    return [ClusterHealth([raylet, *others], unready)]


def node_parts() -> list[Part]:
    """Return the raylet of this node and the GCS of its cluster.

    Ray 2.60 keeps their addresses in a `Node` of the process; both answer gRPC's health protocol.
    """
    import ray._private.worker as ray_worker

    node: Any = vars(ray_worker)["_global_node"]
    raylet = find("raylet", f"--node_id={node.node_id}")
    gcs = find("gcs_server", f"--session-name={node.session_name}")
    address = f"{node.node_ip_address}:{node.node_manager_port}"
    return [
        _server_part("Ray's raylet", address, raylet, "raylet"),
        _server_part("Ray's GCS", node.gcs_address, gcs, "gcs_server"),
    ]


def _server_part(name: str, address: str, found: Process | None, log: str) -> Part:
    """Return a part that answers gRPC's health protocol."""
    from ray._private.grpc_utils import init_grpc_channel

    # By default gRPC waits up to two minutes before it connects again: so long changes would be refused after
    # the head is back.
    backoff = [(f"grpc.{which}_reconnect_backoff_ms", _RECONNECT_MS) for which in ("initial", "min", "max")]
    channel = init_grpc_channel(address, [("grpc.enable_http_proxy", 0), *backoff])
    check = channel.unary_unary("/grpc.health.v1.Health/Check")

    async def ask() -> None:
        await asyncio.to_thread(check, b"", timeout=_SERVER_ANSWER_S)

    return Part(name, ask, _SERVER_ANSWER_S, found, log, channel.close)


def controller_part() -> Part:
    """Return Serve's controller, which may be started later."""
    import ray

    found: list[Any] = []

    async def ask() -> Process | None:
        if not found:
            found.append(await asyncio.to_thread(ray.get_actor, _CONTROLLER, "serve"))
        pid = await asyncio.wrap_future(found[0].get_pid.remote().future())
        # On another node, the id may be that of something else here.
        return process(pid) if any("ServeController" in word for word in arguments(pid)[:1]) else None

    return Part("Serve's controller", ask, _ACTOR_ANSWER_S)


def actor_part(name: str, ask: Ask) -> Part:
    """Return an actor, which is asked by a call."""
    return Part(name, ask, _ACTOR_ANSWER_S)
