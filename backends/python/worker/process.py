"""The worker process of an instance of a Python model: the replica's side."""

import itertools
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from app.core.errors import InferError, internal
from app.core.installation import SERVER_PYTHON
from app.core.tensors import Buffer, InferResponse, SequenceId, failed
from backends.base import Request
from backends.python.api import server_api
from backends.python.api.errors import stub_failed
from backends.python.execution.execution import Clocked
from backends.python.execution.instance import PythonInstance
from backends.python.worker.activation import environment_variables
from backends.python.worker.framing import LinkClosed, Message, Payload
from backends.python.worker.link import CallLink, Link
from backends.python.worker.link_codec import read_response, request_fields
from backends.python.worker.process_calls import ProcessCalls

logger = logging.getLogger(__name__)

_MAIN: Final = str(Path(__file__).with_name("worker_main.py"))
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
    """One run of the worker process. It ends with the thread that started it (PR_SET_PDEATHSIG)."""

    def __init__(
        self,
        instance: PythonInstance,
        python: Path,
        start_s: float,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the process and wait, at most `start_s` seconds, until it receives messages.

        `on_end` is called when it has ended, on any thread and before its requests in flight fail.

        Raises:
            InferError: INTERNAL with its output when it ended, or when the time is over.
        """
        self._instance = instance
        self._name = instance.name
        self._python = python
        self._ending = threading.Lock()
        self._on_end = on_end
        self._in_flight: dict[int, Request] = {}
        self._numbers = itertools.count(1)
        self.ended = False
        self._said_hello = self._tells_readiness = False
        self._started = threading.Event()  # said hello, or ended
        self._output: deque[str] = deque(maxlen=_LAST_LINES)
        ends, far_ends = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        self.link = Link(ends[0], self._handle)
        self._jobs = CallLink(ends[1])
        self._calls = ProcessCalls(self.link, self._name, self._in_flight)
        try:
            self._process = self._spawn([end.fileno() for end in far_ends])
        except OSError as error:
            self._close()
            raise internal(f"unable to start {python} for model '{instance.model_name}': {error}") from error
        finally:
            for end in far_ends:
                end.close()
        self._printer = self._thread(self._log_output, "output")
        self._reader = self._thread(self._serve, "messages")
        self._started.wait(start_s)
        self._check_start(start_s)

    def begin(self) -> None:
        """Import and initialise the model.

        Raises:
            InferError: INTERNAL with the model's exception, or when the process ended.
        """
        self._tells_readiness = self._request("start")

    def complete(self) -> dict[str, Any] | None:
        """Return the configuration after `auto_complete_config`; see `execution.completed`."""
        completed: dict[str, Any] | None = self._request("complete")
        return completed

    @property
    def pid(self) -> int:
        """Return the process's id."""
        return self._process.pid

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        """Execute one batch; see `Execution.execute`. If the process ends, the requests fail."""
        numbered = {next(self._numbers): request for request in requests}
        self._in_flight.update(numbered)
        buffers: list[Buffer] = []
        sent = [(number, request_fields(request.infer, buffers)) for number, request in numbered.items()]
        try:
            value, payload = self._jobs.call({"do": "execute", "requests": sent}, buffers)
            if self._instance.decoupled:  # the responses that it has sent came over the other link
                self.link.request({"do": "flush"})
        except LinkClosed:
            self._reader.join(_KILLED_S)  # which learns how the process ended
            self._fail_in_flight()
            return
        except BaseException:
            for number in numbered:
                self._in_flight.pop(number, None)
            raise
        clock.compute_start_ns, clock.compute_end_ns = value["start_ns"], value["end_ns"]
        for number, detached, rescheduled in value["flags"]:
            numbered[number].detached = detached
            numbered[number].rescheduled = rescheduled
        for number, fields in value["responses"]:
            self._reply(number, read_response(fields, payload))
        for number, request in numbered.items():
            if request.rescheduled or not (self._instance.decoupled or request.detached):
                self._in_flight.pop(number, None)

    def finalize_sequence(self, sequence_id: SequenceId) -> None:
        """Report the end of a sequence to the model, before the next batch."""
        try:
            self._jobs.send({"do": "finalize_sequence", "sequence": sequence_id})
        except LinkClosed:
            pass

    def is_ready(self, timeout: float) -> bool:
        """Return the result of the model's `is_ready`; False when the process does not reply in time."""
        if not self._tells_readiness:
            return not self.ended
        try:
            return bool(self.link.request({"do": "ready"}, timeout=timeout)[0])
        except (LinkClosed, TimeoutError):
            return False

    def metrics(self, timeout: float) -> list[Any]:
        """Return the custom metrics; see `metrics.snapshot`.

        Raises:
            LinkClosed, TimeoutError: the process has ended, or does not reply in time.
        """
        families: list[Any] = self.link.request({"do": "metrics"}, timeout=timeout)[0]
        return families

    def wait(self) -> str:
        """Wait for the end of the process; return its exit status or signal. Requests in flight fail."""
        with suppress(ChildProcessError):  # it is waited for already
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        for link in (self.link, self._jobs):  # which processes that the model has forked may hold open
            link.shutdown()
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

    def stop(self, timeout: float) -> None:
        """Finalize the model and end the process; kill it after `timeout` seconds."""
        try:
            self._jobs.call({"do": "finalize"}, timeout=timeout)
            self._reader.join(_KILLED_S)
        except (LinkClosed, InferError, TimeoutError) as error:
            logger.warning("process of instance '%s' is killed: %s", self._name, error)
        self.kill()
        self.link.shutdown()
        self.wait()

    def _close(self) -> None:
        self._calls.close()
        self.link.close()
        self._jobs.close()

    def _spawn(self, descriptors: list[int]) -> "subprocess.Popen[bytes]":
        isolation = [] if self._python == SERVER_PYTHON else ["-s"]
        return subprocess.Popen(
            [str(self._python), *isolation, _MAIN, *map(str, descriptors), self._name],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment_variables(self._python, os.environ),
            start_new_session=True,
        )

    def _check_start(self, start_s: float) -> None:
        ended = self._started.is_set()
        if self._said_hello:
            return
        self.kill()
        status = self.wait()
        if ended:
            raise self._ended(status)
        raise internal(
            f"Timed out occurred while waiting for the stub process ({start_s:g} s). Failed to initialize"
            f" model instance {self._name}. --backend-config=python,stub-timeout-seconds=N gives it more time"
        )

    def _ended(self, status: str) -> InferError:
        output = "\n".join(self._output)
        return internal(f"{not_healthy(self._name)} {self._python} ended with {status}: {output}")

    def _request(self, verb: str) -> Any:
        try:
            caller = server_api.current().caller or self._instance.model_name
            return self._jobs.call({"do": verb, "instance": asdict(self._instance), "caller": caller})[0]
        except LinkClosed:
            raise self._ended(self.wait()) from None

    def _thread(self, target: Callable[[], None], what: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"{self._name} {what}", daemon=True)
        thread.start()
        return thread

    def _serve(self) -> None:
        try:
            self.link.serve()
        except Exception:
            logger.exception("the process of instance '%s' sent a malformed message", self._name)
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
                logger.info("%s: %s", self._name, text)

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
        if not noted:
            self._on_end()
        status = self._status()
        text = not_healthy(self._name) + (f" It ended with {status}." if status else "")
        failure = stub_failed(self._name, text)
        for number in list(self._in_flight):
            request = self._in_flight.pop(number, None)
            if request is not None and not request.answered:
                request.reply(failed(failure, request.infer.id))

    def _reply(self, number: int, response: InferResponse) -> None:
        request = (self._in_flight.pop if response.final else self._in_flight.get)(number, None)
        if request is not None and not request.answered:
            request.reply(response)

    def _handle(self, message: Message, payload: Payload) -> None:
        verb = message["do"]
        if verb == "response":
            self._reply(message["request"], read_response(message["response"], payload))
        elif verb == "cancelled":
            request = self._in_flight.get(message["request"])
            self.link.reply(message, request is not None and request.is_cancelled())
        elif verb == "log":
            _log(message)
        elif verb == "hello":
            identity = (self._name, self._process.pid, message["python"], message["prefix"])
            logger.info("instance '%s' is process %d: Python %s of %s", *identity)
            self._said_hello = True
            self._started.set()
        else:
            self._calls.handle(message, payload)


def _log(message: Message) -> None:
    """Write a log record of the worker process to the log of this one."""
    target = logging.getLogger(message["name"])
    level, (path, line) = message["level"], message["place"]
    if target.isEnabledFor(level):
        target.handle(target.makeRecord(target.name, level, path, line, "%s", (message["text"],), None))
