"""Calls of processes that a model forks, by `multiprocessing` for example.

A forked process has none of the threads that serve the calls of a model, so its own would wait without end.
It gets a link to the process that forked it instead, which makes the calls for it.
"""

import logging
import os
import threading
from socket import socket
from typing import Final

from app.core.errors import unavailable
from backends.python.api import server_api
from backends.python.worker.framing import Packed, pair
from backends.python.worker.link import Link
from backends.python.worker.process_calls import ProcessCalls
from backends.python.worker.worker import RemoteCalls

logger = logging.getLogger(__name__)

_NAME: Final = "a forked process"


class _Forks:
    """What this process holds of its forks.

    Attributes:
        ends: the sockets to processes that it has forked.
        made: by each thread that forks, the sockets of the process to come.
    """

    def __init__(self) -> None:
        self.ends: set[socket] = set()
        self.made = threading.local()


_forks = _Forks()
_following = False


def follow() -> None:
    """Give each process that is forked from now on a link. Idempotent."""
    global _following
    if not _following:
        _following = True
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def _before() -> None:
    none = isinstance(server_api.current(), server_api.NoServerApi)
    _forks.made.sockets = None if none else pair()


def _in_parent() -> None:
    sockets, _forks.made.sockets = _forks.made.sockets, None
    if sockets is not None:
        end, far_end = sockets
        far_end.close()
        _forks.ends.add(end)
        threading.Thread(target=_serve, args=(end,), name=f"calls of {_NAME}", daemon=True).start()


def _in_child() -> None:
    global _forks
    sockets, ends, _forks = _forks.made.sockets, _forks.ends, _Forks()
    if sockets is None:
        return
    for end in (
        sockets[0],
        *ends,
    ):  # which tells their processes, by its end, that this one's parent has ended
        end.close()
    link = _LinkOfFork(sockets[1])
    server_api.install_in_fork(link.calls)


class _LinkOfFork(Link):
    """The forked process's end: receives from the first message on that it sends, on a thread of its own."""

    changes_tensors = True

    def __init__(self, sock: socket) -> None:
        self.calls = RemoteCalls(self, server_api.current().caller)
        super().__init__(sock, self.calls.receive)
        self._starting = threading.Lock()
        self._reader: threading.Thread | None = None

    def _send(self, packed: Packed) -> None:
        with self._starting:
            if self._reader is None:
                self._reader = threading.Thread(target=self._receive, name="responses", daemon=True)
                self._reader.start()
        super()._send(packed)

    def _receive(self) -> None:
        self.serve()
        self.calls.fail(unavailable("the process that forked this one has ended"))


def _serve(end: socket) -> None:
    """Make the calls of a process that this one has forked, until it ends."""
    link = Link(end, lambda message, payload: calls.handle(message, payload))
    calls = ProcessCalls(link, _NAME, {})
    try:
        link.serve()
    except Exception:
        logger.exception("%s sent a malformed message", _NAME)
    finally:
        calls.cancel()
        calls.close()
        _forks.ends.discard(end)
        link.close()
