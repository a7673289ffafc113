"""What the process of a Python model does: it is the replica, without anything of Ray.

The main thread executes the model, as in Triton's stub. Another one has the event loop, and one more loads.
"""

import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from app.core.encoding import from_exact_json, to_msgpack
from app.core.observability.log import configure_logging
from app.core.system import main_thread
from app.core.system.main_thread import MainThread
from app.core.system.numpy_threads import follow_processors
from app.core.system.processes import count_with
from app.core.system.tasks import Tasks
from app.ray_adapter.serve import replicas
from app.transport.channel.client import Channel
from app.transport.loops.thread import LoopThread
from deployments.execution.instance_thread import record_activity_in
from deployments.model_process.activity import Activity
from deployments.model_process.calls import FOREVER_S, HOST_SETTINGS, HostCluster
from deployments.model_process.start_message import Start
from deployments.replica.replica import Replica
from deployments.scheduling.dynamic.serve_batch import without_serve
from deployments.spec import ModelSpec

logger = logging.getLogger(__name__)

_EXIT_S: Final = 5.0
"""Time for what the model left running, once it is finalized."""


def run(told: bytes, descriptor: int, activity: int) -> None:
    """Serve a model; return when the replica that has started this process says so.

    Args:
        told: a serialised `Start`.
        descriptor: the socket with whose other end this process is to end.
        activity: of the memory in which it says since when it executes.
    """
    lifeline = socket.socket(fileno=descriptor)
    end_with(lifeline)
    start = msgspec.msgpack.decode(told, type=Start)
    spec = from_exact_json(start.spec, ModelSpec)
    sys.argv = [""]  # as in Triton's stub: a model that parses arguments must not find ours
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    configure_logging(spec.log)
    follow_processors()
    record_activity_in(Activity(activity))
    count_with(start.host_pid)
    main = MainThread()
    main_thread.offer(main)
    served = _Served(start, spec, main)
    os.register_at_fork(after_in_child=served.leave_sockets)
    threading.Thread(target=served.load, name="load", daemon=True).start()
    main.run()
    _exit_in_time()


def end_with(lifeline: socket.socket) -> None:
    """Have the kernel kill this process, and what it starts, when the other end of a socket is closed.

    Also while it holds the interpreter. What has left its process group goes on.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    with suppress(BlockingIOError):  # nothing is ever sent
        lifeline.recv(1, socket.MSG_DONTWAIT)
        os._exit(1)  # it was closed before


def _exit_in_time() -> None:
    """Let the interpreter's exit run what the model has registered, but not wait long for its threads."""
    timer = threading.Timer(_EXIT_S, os._exit, (0,))
    timer.daemon = True
    timer.start()


class _Served(Replica):
    """The replica of this process."""

    def __init__(self, start: Start, spec: ModelSpec, main: MainThread) -> None:
        plane = LoopThread("data-plane")
        self._main = main
        self._tasks = Tasks()
        self._start = start
        self._host = plane.call(Channel.connect(start.host, spec.key, HOST_SETTINGS))
        cluster = HostCluster(self._host, plane, start.place.node)
        super().__init__(spec, start.place, plane, cluster, without_serve)

    def load(self) -> None:  # type: ignore[override]
        """Load the model, report that, and do what the starting replica says until it says `stop`."""
        self._plane.loop.call_soon_threadsafe(self._start_obeying)
        try:
            description = super().load(self._start.restarts)
            report = [to_msgpack(description), self.addresses]
            self._plane.call(self._host.control("loaded", report, FOREVER_S))
        except SystemExit as error:  # the model's, which ends its process
            os._exit(error.code if isinstance(error.code, int) else 1)
        except BaseException:  # nobody would ever hear of it
            logger.exception("loading model '%s'", self._spec.name)
            os._exit(1)

    def leave_sockets(self) -> None:
        """Let go, in a process that the model has forked, of the sockets of this replica.

        Else nobody could listen at its addresses while that process runs, after the end of this one, and
        clients would take their connections for alive. The numbers stay in use: their owners may close them.
        """
        names = {_name(address) for address in (self._start.host, *self.addresses.values())}
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if not names.isdisjoint(_names_of(descriptor)):
                os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    def _start_obeying(self) -> None:
        self._tasks.start(self._obey())

    async def _obey(self) -> None:
        while True:
            verb, *arguments = await self._host.control("next", None, FOREVER_S)
            if verb == "replicas":
                replicas.publish(*arguments)
            elif verb == "ask":
                self._tasks.start(self._answer(*arguments))
            elif verb == "stop":
                threading.Thread(target=self._stop, name="stop", daemon=True).start()
                return

    def _stop(self) -> None:
        try:
            asyncio.run(self.close())
        except Exception:
            logger.exception("stopping model '%s'", self._spec.name)
        self._main.stop()

    async def _answer(self, number: int, what: str) -> None:
        """Answer a question: `health`, why this replica cannot go on, or `describe`."""
        answer = self.broken() if what == "health" else to_msgpack(await self.describe())
        await self._host.control("answer", [number, answer], FOREVER_S)


def _name(address: str) -> Any:
    """Return what the kernel calls a socket at an address of a channel."""
    scheme, _, rest = address.partition(":")
    if scheme == "unix":
        return rest
    host, _, port = rest.rpartition(":")
    return host.strip("[]"), int(port)


def _names_of(descriptor: int) -> Iterator[Any]:
    """Yield the names of both ends of a socket, TCP's without the flow and scope of IPv6."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:  # no socket, or closed
        return
    for name in (sock.getsockname, sock.getpeername):
        with suppress(OSError):
            found = name()
            yield found[:2] if isinstance(found, tuple) else found
    sock.detach()
