"""A program's watch over the cluster that it serves on: when it must end, and what it ends itself."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from app.core.files.private_files import socket_root
from app.core.files.unix_sockets import remove_dead
from app.core.system.processes import Process, arguments, descendants, kill_descendants, reap_adopted
from app.ray_adapter.cluster import Ours, disconnect, retire
from app.ray_adapter.cluster_health import ClusterHealth, controller_part, next_turn, node_parts
from app.ray_adapter.local.attempts import start_again
from app.ray_adapter.local.ray_logs import last_lines

_LAST_ANSWERS_S: Final = 4.0
"""Time that the server goes on, not ready, without its raylet or GCS: requests in flight are answered."""
_SILENCE_S: Final = 30.0
"""Time that the controller may be too busy to answer."""
_STOPPED_S: Final = 4.0
"""Time that a process of Serve may be stopped (SIGSTOP)."""
_LOOK_S: Final = 0.25
_CLOSE_S: Final = 2.0
_SURVEY_S: Final = 5.0
_STOP_S: Final = 10.0
"""Time to stop, beyond that for requests in flight."""
_TITLES: Final = ("ray::ServeController", "ray::ServeReplica:{application}:")
"""How the titles of Serve's controller and of an application's replicas begin."""


class Supervisor:
    """Ends the program when its cluster can never be whole again, or when it takes too long to stop.

    In a cluster of its own it also ends processes of Serve that hang, so that Ray starts others, and runs the
    program anew when Ray breaks before the server was ready. It begins when it is made.

    Args:
        owned: the program has started the cluster; in another, it ends nothing but itself.
        application: of the ingress and the manager. Models are left to Serve's health checks.
        exit_timeout_s: time for requests in flight when it stops.
        clean: removes files of the server, when every process of a cluster of its own has ended.
    """

    def __init__(
        self,
        owned: bool,
        application: str,
        exit_timeout_s: float,
        clean: Callable[[], None] = lambda: None,
    ) -> None:
        import ray._private.worker as ray_worker

        node: Any = vars(ray_worker)["_global_node"]
        self._owned = owned
        self._clean = clean
        self._application = application
        self._titles = tuple(title.format(application=application) for title in _TITLES)
        self._stop_s = exit_timeout_s + _STOP_S
        self._logs = str(node.get_logs_dir_path())
        self._children = frozenset(info.process.pid for each in node.all_processes.values() for info in each)
        # In another cluster, Ray ends the raylet when the GCS stays away for longer than it allows.
        self._essential = node_parts() if owned else node_parts()[:1]
        self._controller = controller_part()
        self._health = ClusterHealth([*self._essential, self._controller])
        self._vital: list[Process] = []
        self._stopped: dict[Process, float] = {}
        self._surveyed = 0.0
        self._ready = False
        self._leaving = False
        self._left = False
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="supervisor", daemon=True
        )
        self._thread.start()

    def ready(self) -> None:
        """Do not start again from now on: the server has been ready."""
        self._ready = True

    def bound_stop(self) -> None:
        """Allow the program its exit timeout and a little more to end; call it as often as you like."""
        if not self._leaving:
            self._leaving = True
            reason = f"error: not stopped within {self._stop_s:g} s: ending every process"
            late = threading.Timer(self._stop_s, self._abandon, [reason])
            late.daemon = True
            late.start()

    def leave(self, ours: Ours) -> None:
        """Stop the server and disconnect; see `retire`."""
        self.bound_stop()
        retire(self._application, self._owned, ours)
        self._left = True
        self._thread.join(_CLOSE_S)  # its connections end first: gRPC would print that their other ends have
        disconnect(self._owned)
        self._end_all()

    async def _run(self) -> None:
        watching = asyncio.create_task(self._health.watch())
        while not self._left:
            now = time.monotonic()
            reason = self._lost(now)
            if reason and self._owned and not (self._ready or self._leaving):
                start_again(reason)
            elif reason:
                self._abandon(f"error: {reason}")
            elif self._owned:
                self._end_hanging(now)
            await next_turn(_LOOK_S)
        watching.cancel()

    def _lost(self, now: float) -> str:
        """Return what is gone for good, with Ray's last words; "" for nothing."""
        for part in self._essential:
            if part.lasts(_LAST_ANSWERS_S, now):
                return f"{part.name} {part.fault}{last_lines(self._logs, part.log)}"
        return ""

    def _end_hanging(self, now: float) -> None:
        if self._controller.lasts(_SILENCE_S, now) and self._controller.process is not None:
            _end(self._controller.process, "does not answer")
        if now - self._surveyed >= _SURVEY_S:
            self._surveyed = now
            below = descendants(os.getpid())
            self._vital = [each for each in below if self._is_vital(each)]
            reap_adopted(self._children, below)
        stopped = [each for each in self._vital if each.fault == "is stopped"]
        self._stopped = {each: self._stopped.get(each, now) for each in stopped}
        for each, since in self._stopped.items():
            if now - since >= _STOPPED_S:
                _end(each, each.fault)

    def _abandon(self, reason: str) -> NoReturn:
        """Print why, end everything, and exit with 1, whatever threads of the program wait for."""
        print(reason, file=sys.stderr, flush=True)
        self._end_all()
        sys.stdout.flush()
        os._exit(1)

    def _end_all(self) -> None:
        """Kill every process below this one, in a cluster of its own, and remove the files of them."""
        if self._owned:
            kill_descendants()
            remove_dead(socket_root())
            self._clean()

    def _is_vital(self, process: Process) -> bool:
        return any(word.startswith(self._titles) for word in arguments(process.pid)[:1])


def _end(process: Process, reason: str) -> None:
    if process.fault != "has ended":
        title = " ".join(arguments(process.pid)).strip()
        print(f"{title} (pid {process.pid}) {reason}: killed", file=sys.stderr, flush=True)
        process.kill()
