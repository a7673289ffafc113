"""Has another process execute the batches of one instance, while no thread of this one waits for it.

A batch that the instance's thread sends costs two thread switches, from the event loop to that thread and
back. Here the loop itself sends it, and reads the reply when there is one.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from socket import socket
from typing import Generic, Protocol, TypeVar

from backends.base import Begun


class _Batch(Protocol):
    begun: Begun | None


BatchT = TypeVar("BatchT", bound=_Batch)


class RemoteExecutor(Generic[BatchT]):
    """Sends batches, one at a time, and finishes them; all but `close` is called on the loop.

    Args:
        begin: begins to execute a batch, without waiting; None or an exception where that is not possible.
        finish: finishes a batch that the process has executed.
        report: reports a finished batch, whereupon another may be started.
        execute: has a thread execute a batch, or finish it if that may have to wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[BatchT], Begun | None],
        finish: Callable[[BatchT], None],
        report: Callable[[BatchT], None],
        execute: Callable[[BatchT], None],
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._finish = finish
        self._report = report
        self._execute = execute
        self._batch: BatchT | None = None
        self._next: BatchT | None = None
        self._source: object = None
        self._watched: socket | None = None
        self._closed = False
        self._idle = threading.Lock()  # held while the process executes

    def start(self, batch: BatchT) -> bool:
        """Begin to execute a batch, or keep it until the one before has ended; return whether it was."""
        if self._batch is not None:
            self._next = batch
            return True
        self._idle.acquire()
        if not self._closed and self._send(batch):
            return True
        self._idle.release()
        return False

    def close(self) -> None:
        """Wait for the batch that the process executes; afterwards none is started. Not on the loop."""
        with self._idle:
            self._closed = True

    def _send(self, batch: BatchT) -> bool:
        with suppress(Exception):  # the thread meets it again, and reports it
            batch.begun = self._begin(batch)
        if batch.begun is None:
            return False
        if batch.begun.source is not self._source:
            try:
                self._watch(batch.begun)
            except OSError:
                return False
        self._batch = batch
        return True

    def _watch(self, begun: Begun) -> None:
        self._unwatch()
        # A socket of its own: that of the process may be closed on another thread, and its number used again.
        self._watched = begun.open_source()
        self._loop.add_reader(self._watched, self._on_readable)
        self._source = begun.source

    def _unwatch(self) -> None:
        self._source = None
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._watched.close()
            self._watched = None

    def _on_readable(self) -> None:
        batch = self._batch
        if batch is None or batch.begun is None:  # the process has ended, or a thread waits for its reply
            self._unwatch()
            return
        try:
            if batch.begun.has_ended():
                self._on_end(batch)
        except ConnectionError:
            self._unwatch()
            self._pass_on(batch)

    def _on_end(self, batch: BatchT) -> None:
        self._batch = None
        self._finish(batch)
        following, self._next = self._next, None
        if following is None:
            self._idle.release()
        elif not self._send(following):
            self._idle.release()
            self._execute(following)
        self._report(batch)

    def _pass_on(self, batch: BatchT) -> None:
        """Have the thread finish a batch whose process has ended, and execute the next."""
        self._batch = None
        following, self._next = self._next, None
        self._execute(batch)
        if following is not None:
            self._execute(following)
        self._idle.release()
