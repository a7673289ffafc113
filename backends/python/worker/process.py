"""The worker process of one instance of a model, or of several: the replica's side."""

import itertools
import logging
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, Final

from app.core.datatypes import STRINGS
from app.core.errors import InferError, internal
from app.core.installed.installation import SERVER_PYTHON
from app.core.tensors import InferResponse, failed
from backends.base import Request
from backends.python.api import server_api
from backends.python.api.errors import stub_failed
from backends.python.worker import worker_main
from backends.python.worker.activation import environment_variables
from backends.python.worker.framing import LinkClosed, Message, MessageSocket, Payload, pair
from backends.python.worker.link import CallLink, Link
from backends.python.worker.link_codec import read_sent_response
from backends.python.worker.process_calls import ProcessCalls

logger = logging.getLogger(__name__)

_MAIN: Final = str(Path(worker_main.__file__))
_LAST_LINES: Final = 30
_LINE_BYTES: Final = 8192
_KILLED_S: Final = 5.0
_LOOK_S: Final = 0.005
_STATUS_S: Final = 0.5
"""Time for a process that has closed its link to end."""


def not_healthy(name: str) -> str:
    """Return Triton's text for a process that does not run."""
    return f"Stub process '{name}' is not healthy."


class Process:
    """One run of a worker process, which executes one instance, or several with a thread for each.

    Attributes:
        name: that of the instance it was started for.
        link: carries everything but executions.
        in_flight: the requests of all instances, by their numbers.
        ended: whether it has ended.
    """

    def __init__(self, name: str, model_name: str, python: Path, start_s: float) -> None:
        """Start the process and wait, at most `start_s` seconds, until it receives messages.

        Raises:
            InferError: INTERNAL with its output when it ended, or when the time is over.
        """
        self.name = name
        self._model_name = model_name
        self._python = python
        self._ending = threading.Lock()
        self._users: dict[CallLink, Callable[[], None]] = {}
        self._leaving = False
        self.in_flight: dict[int, Request] = {}
        self._numbers = itertools.count(1)
        self.ended = False
        self._hello: Message | None = None
        self._started = threading.Event()  # said hello, or ended
        self._output: deque[str] = deque(maxlen=_LAST_LINES)
        end, far_end = pair()
        self.link = Link(end, self._handle)
        self._calls = ProcessCalls(self.link, self.name, self.in_flight)
        self._spawned: Future[subprocess.Popen[bytes]] = Future()
        self._watcher = self._thread(partial(self._watch, far_end), "end")
        try:
            self._process = self._spawned.result()
        except (OSError, InferError) as error:
            self._close()
            if isinstance(error, InferError):
                raise
            raise internal(f"unable to start {python} for model '{model_name}': {error}") from error
        self._printer = self._thread(self._log_output, "output")
        self._reader = self._thread(self._serve, "messages")
        self._started.wait(start_s)
        self._check_start(start_s)

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    def join(self, name: str, on_end: Callable[[], None]) -> CallLink:
        """Add an instance, and return the link for its executions.

        `on_end` is called when the process has ended, on any thread and before its requests in flight fail.

        Raises:
            LinkClosed: it has ended, or is about to.
        """
        end, far_end = pair()
        jobs = CallLink(end)
        try:
            with self._ending:
                if self._leaving:
                    raise LinkClosed("the process is about to end")
                self._users[jobs] = on_end
            self._introduce(name, far_end)
        except LinkClosed:
            self._users.pop(jobs, None)
            jobs.close()
            far_end.close()
            raise
        return jobs

    def leave(self, jobs: CallLink, at_once: bool) -> None:
        """Remove an instance; with the last one the process ends, or is killed `at_once`."""
        with self._ending:
            left = self._users.pop(jobs, None)
            last = self._leaving = not self._users
        if last:
            self._end(at_once or left is None)
        jobs.shutdown()
        jobs.close()

    def number(self, requests: Sequence[Request]) -> dict[int, Request]:
        """Give requests numbers, by which the process knows them, and note them as in flight."""
        numbered = {next(self._numbers): request for request in requests}
        self.in_flight.update(numbered)
        return numbered

    def forget(self, numbered: Iterable[int]) -> None:
        """Note that requests are not in flight any more."""
        for number in numbered:
            self.in_flight.pop(number, None)

    def deliver(self, number: int, response: InferResponse) -> None:
        """Pass a response to its request."""
        request = (self.in_flight.pop if response.final else self.in_flight.get)(number, None)
        if request is not None and not request.answered:
            request.deliver(response)

    def fail_in_flight(self) -> None:
        """Fail the requests in flight, once it is known how the process ended."""
        self._reader.join(_KILLED_S)
        self._fail_in_flight()

    def metrics(self, timeout: float) -> list[Any]:
        """Return the custom metrics; see `metrics.snapshot`.

        Raises:
            LinkClosed, TimeoutError: the process has ended, or does not reply in time.
        """
        families: list[Any] = self.link.request({"do": "metrics"}, timeout=timeout)[0]
        return families

    def wait(self) -> str:
        """Wait for the end of the process; return its exit status or signal. Requests in flight fail."""
        self._watcher.join()
        self._reader.join()
        self.kill()
        self._printer.join(_KILLED_S)
        self._close()
        return self._status()

    def _status(self) -> str:
        """Return the exit status or signal of the process; "" while it runs."""
        code = self._process.returncode
        if code is None:
            return ""
        return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit status {code}"

    def _introduce(self, name: str, far_end: socket) -> None:
        assert self._hello is not None
        identity = (name, self.pid, self._hello["python"], self._hello["prefix"])
        logger.info("instance '%s' is process %d: Python %s of %s", *identity)
        caller = server_api.current().caller or self._model_name
        self.link.send_socket({"do": "open", "name": name, "caller": caller}, far_end)

    def _end(self, at_once: bool) -> None:
        if not at_once:
            with suppress(LinkClosed):
                self.link.send({"do": "exit"})
            self._reader.join(_KILLED_S)
        self.kill()
        self.link.shutdown()
        self.wait()

    def _close(self) -> None:
        self._calls.close()
        for link in self._links():
            link.close()

    def _links(self) -> list[MessageSocket]:
        return [self.link, *list(self._users)]

    def _watch(self, far_end: socket) -> None:
        """Start the process and wait for its end, on a thread of its own: the process ends with that."""
        try:
            process = self._spawn(far_end.fileno())
            self._spawned.set_result(process)
        except BaseException as error:
            self._spawned.set_exception(error)
            return
        finally:
            far_end.close()
        with suppress(ChildProcessError):  # it is waited for already
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        for link in self._links():  # which processes that the model has forked may hold open
            link.shutdown()

    def _spawn(self, descriptor: int) -> "subprocess.Popen[bytes]":
        compiled = [worker_main.COMPILED] if STRINGS.is_compiled else []
        isolation = [] if self._python == SERVER_PYTHON else ["-s"]
        return subprocess.Popen(
            [str(self._python), *isolation, _MAIN, str(descriptor), self.name, *compiled],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment_variables(self._python, os.environ),
            start_new_session=True,
        )

    def _check_start(self, start_s: float) -> None:
        ended = self._started.is_set()
        if self._hello is not None:
            return
        self.kill()
        status = self.wait()
        if ended:
            raise self.failed(status)
        raise internal(
            f"Timed out occurred while waiting for the stub process ({start_s:g} s). Failed to initialize"
            f" model instance {self.name}. --backend-config=python,stub-timeout-seconds=N gives it more time"
        )

    def failed(self, status: str) -> InferError:
        """Return the error of a load during which the process ended."""
        output = "\n".join(self._output)
        return internal(f"{not_healthy(self.name)} {self._python} ended with {status}: {output}")

    def _thread(self, target: Callable[[], None], what: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"{self.name} {what}", daemon=True)
        thread.start()
        return thread

    def _serve(self) -> None:
        try:
            self.link.serve()
        except Exception:
            logger.exception("the process of instance '%s' sent a malformed message", self.name)
        self._started.set()
        self._await_end()
        self.kill()
        self._fail_in_flight()
        self._calls.cancel()

    def _await_end(self) -> None:
        """Give a process that has closed its link the time to end by itself; its status is kept."""
        deadline = time.monotonic() + _STATUS_S
        ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
        with suppress(ChildProcessError):  # it is waited for already
            while os.waitid(os.P_PID, self.pid, ended) is None and time.monotonic() < deadline:
                time.sleep(_LOOK_S)

    def _log_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while line := output.readline(_LINE_BYTES):
                text = line.decode(errors="replace").rstrip()
                self._output.append(text)
                logger.info("%s: %s", self.name, text)

    def kill(self) -> None:
        """Kill the process with all that it started; return when it has ended."""
        with self._ending:
            if self._process.returncode is None:  # until it is waited for, no other process has its id
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _fail_in_flight(self) -> None:
        """Note the end of the process and fail the requests in flight."""
        with self._ending:
            noted, self.ended = self.ended, True
            told = list(self._users.values())
        if not noted:
            for on_end in told:
                on_end()
        status = self._status()
        text = not_healthy(self.name) + (f" It ended with {status}." if status else "")
        failure = stub_failed(self.name, text)
        for number in list(self.in_flight):
            request = self.in_flight.pop(number, None)
            if request is not None and not request.answered:
                request.deliver(failed(failure, request.infer.id))

    def _handle(self, message: Message, payload: Payload) -> None:
        verb = message["do"]
        if verb == "response":
            self.deliver(message["request"], read_sent_response(message["response"], payload))
        elif verb == "cancelled":
            request = self.in_flight.get(message["request"])
            self.link.reply(message, request is not None and request.is_cancelled())
        elif verb == "log":
            _log(message)
        elif verb == "hello":
            self._hello = message
            self._started.set()
        else:
            self._calls.handle(message, payload)


def _log(message: Message) -> None:
    """Write a log record of the worker process to the log of this one."""
    target = logging.getLogger(message["name"])
    level, (path, line) = message["level"], message["place"]
    if target.isEnabledFor(level):
        target.handle(target.makeRecord(target.name, level, path, line, "%s", (message["text"],), None))
