"""Work for the main thread of a process whose other threads do the rest.

Signal handlers, timeouts by SIGALRM and many libraries want Python's main thread; Triton's stub executes a
model there. A process of a model's own gives it that thread.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Runs(Protocol):
    """A `threading.Thread`, as those use it who start and end one."""

    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class MainThread:
    """Executes what other threads give it, one after the other; the main thread is in `run`."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._claimed = False
        self._stopped = False

    def run(self) -> None:
        """Execute what is given until `stop`."""
        while (work := self._work.get()) is not None:
            work()

    def stop(self) -> None:
        """Have `run` return when it has executed what it was given; it is given no more."""
        self._stopped = True
        self._work.put(None)

    def call(self, work: Callable[[], T]) -> T:
        """Return what `work` returns on the main thread, or raise what it raises.

        Called here, on another thread or not, while the main thread has something else to do, or is it.
        """
        if self._claimed or self._stopped or threading.current_thread() is threading.main_thread():
            return work()
        done: Future[T] = Future()
        self._work.put(lambda: _settle(done, work))
        return done.result()

    def claim(self, target: Callable[[], object]) -> Runs | None:
        """Return something that runs `target` on the main thread when started; None while another does."""
        if self._claimed or self._stopped:
            return None
        self._claimed = True
        return _Claim(self, target)


class _Claim:
    """A long piece of work of the main thread."""

    def __init__(self, main: MainThread, target: Callable[[], object]) -> None:
        self._main = main
        self._target = target
        self._ended = threading.Event()
        self._started = False

    def start(self) -> None:
        self._started = True
        self._main._work.put(self._run)

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._main._claimed = False
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        if self._started:
            self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self._started and not self._ended.is_set()


def _settle(done: "Future[Any]", work: Callable[[], Any]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


_current: MainThread | None = None


def offer(main: MainThread) -> None:
    """Let this process's models have the main thread."""
    global _current
    _current = main


def new_thread(target: Callable[[], object], name: str) -> Runs:
    """Return a thread to start: the main thread, if this process offers it and nobody has it."""
    claim = None if _current is None else _current.claim(target)
    return claim or threading.Thread(target=target, name=name, daemon=True)


def call_on_main(work: Callable[[], T]) -> T:
    """Call a function on the main thread, if this process offers it; else here."""
    return work() if _current is None else _current.call(work)
