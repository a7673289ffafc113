"""A process that executes a Python model in an environment of its own, as its replica sees it."""

import itertools
import logging
import os
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from app.core.errors import InferError, internal
from app.core.tensors import Buffer, InferResponse, SequenceId, failed
from backends.base import Request
from backends.python.api import server_api
from backends.python.api.errors import stub_failed
from backends.python.execution.execution import Clocked
from backends.python.execution.instance import PythonInstance
from backends.python.worker.activation import environment_variables
from backends.python.worker.link import Link, LinkClosed, Message, Payload
from backends.python.worker.link_codec import request_fields, response_of
from backends.python.worker.process_calls import ProcessCalls

logger = logging.getLogger(__name__)

_MAIN: Final = str(Path(__file__).with_name("worker_main.py"))
_LAST_LINES: Final = 30
_LINE_BYTES: Final = 8192
_KILLED_S: Final = 5.0


def not_healthy(name: str) -> str:
    """Triton's text of a process that is not there."""
    return f"Stub process '{name}' is not healthy."


class Process:
    """One run of the process. Started by a thread that outlives it: the process ends with that thread."""

    def __init__(self, instance: PythonInstance, python: Path, start_s: float) -> None:
        """Start it and wait, at most `start_s` seconds, until it takes messages.

        Raises:
            InferError: INTERNAL with what it has printed, when it ended or did not get so far.
        """
        self._instance = instance
        self._name = instance.name
        self._python = python
        self._ending = threading.Lock()
        self._open: dict[int, Request] = {}
        self._numbers = itertools.count(1)
        self.ended = False
        self._greeted = False
        self._here = threading.Event()  # greeted, or gone
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        ours, theirs = socket.socketpair()
        self.link = Link(ours, self._handle)
        self._calls = ProcessCalls(self.link, self._name, self._open)
        try:
            self._process = self._spawn(theirs)
        except OSError as error:
            ours.close()
            raise internal(f"unable to start {python} for model '{instance.model_name}': {error}") from error
        finally:
            theirs.close()
        self._printer = self._thread(self._print, "output")
        self._reader = self._thread(self._serve, "messages")
        self._here.wait(start_s)
        self._check_start(start_s)

    def begin(self) -> None:
        """Import and initialise the model.

        Raises:
            InferError: what the model raised, or INTERNAL when the process ended.
        """
        self._asked("start")

    def complete(self) -> dict[str, Any] | None:
        """What `auto_complete_config` makes of the configuration; see `execution.completed`."""
        completed: dict[str, Any] | None = self._asked("complete")
        return completed

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        """Execute one batch; see `Execution.execute`. A process that ends meanwhile fails its requests."""
        numbered = {next(self._numbers): request for request in requests}
        self._open.update(numbered)
        buffers: list[Buffer] = []
        told = [(number, request_fields(request.infer, buffers)) for number, request in numbered.items()]
        try:
            value, payload = self.link.ask({"do": "execute", "requests": told}, buffers)
        except LinkClosed:
            self._lost()
            return
        except BaseException:
            for number in numbered:
                self._open.pop(number, None)
            raise
        clock.compute_start_ns, clock.compute_end_ns = value["start_ns"], value["end_ns"]
        for number, detached, rescheduled in value["flags"]:
            numbered[number].detached = detached
            numbered[number].rescheduled = rescheduled
        for number, fields in value["responses"]:
            self._answer(number, response_of(fields, payload))
        for number, request in numbered.items():
            if request.rescheduled or not (self._instance.decoupled or request.detached):
                self._open.pop(number, None)

    def finalize_sequence(self, sequence_id: SequenceId) -> None:
        """Tell the model that a sequence is over; before the batches to come."""
        try:
            self.link.send({"do": "finalize_sequence", "sequence": sequence_id})
        except LinkClosed:
            pass

    def is_ready(self, timeout: float) -> bool:
        """What the model says of itself; False when the process does not answer."""
        try:
            return bool(self.link.ask({"do": "ready"}, timeout=timeout)[0])
        except (LinkClosed, TimeoutError):
            return False

    def metrics(self, timeout: float) -> list[Any]:
        """Custom metrics, see `metrics.snapshot`.

        Raises:
            LinkClosed, TimeoutError: the process is gone, or does not answer.
        """
        families: list[Any] = self.link.ask({"do": "metrics"}, timeout=timeout)[0]
        return families

    def wait(self) -> str:
        """Wait for the end and say how it came; requests under way are failed."""
        self._reader.join()
        self._kill()
        self._printer.join(_KILLED_S)
        self._calls.close()
        self.link.close()
        code = self._process.returncode
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def stop(self, timeout: float) -> None:
        """Have the model finalized, and end the process; killed when that takes longer than `timeout`."""
        try:
            self.link.ask({"do": "finalize"}, timeout=timeout)
            self._reader.join(_KILLED_S)
        except (LinkClosed, InferError, TimeoutError) as error:
            logger.warning("process of instance '%s' is killed: %s", self._name, error)
        self._kill()
        self.link.shutdown()
        self.wait()

    def _spawn(self, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(self._python), "-s", _MAIN, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment_variables(self._python, os.environ),
            start_new_session=True,
        )

    def _check_start(self, start_s: float) -> None:
        ended = self._here.is_set()
        if self._greeted:
            return
        self._kill()
        how = self.wait()
        if ended:
            raise self._ended(how)
        raise internal(
            f"Timed out occurred while waiting for the stub process ({start_s:g} s). Failed to initialize"
            f" model instance {self._name}. --backend-config=python,stub-timeout-seconds=N gives it more time"
        )

    def _ended(self, how: str) -> InferError:
        said = "\n".join(self._said)
        return internal(f"{not_healthy(self._name)} {self._python} ended with {how}: {said}")

    def _asked(self, verb: str) -> Any:
        try:
            caller = server_api.current().caller or self._instance.model_name
            return self.link.ask({"do": verb, "instance": asdict(self._instance), "caller": caller})[0]
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
            logger.exception("the process of instance '%s' sent what cannot be understood", self._name)
        self.ended = True
        self._here.set()
        self._lost()
        self._calls.cancel()

    def _print(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while line := output.readline(_LINE_BYTES):
                text = line.decode(errors="replace").rstrip()
                self._said.append(text)
                logger.info("%s: %s", self._name, text)

    def _kill(self) -> None:
        with self._ending:
            if self._process.returncode is None:  # its id is its own, and its group's, until it is waited for
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _lost(self) -> None:
        """Fail what is under way."""
        failure = stub_failed(self._name, not_healthy(self._name))
        for number in list(self._open):
            request = self._open.pop(number, None)
            if request is not None and not request.answered:
                request.reply(failed(failure, request.infer.id))

    def _answer(self, number: int, response: InferResponse) -> None:
        request = (self._open.pop if response.final else self._open.get)(number, None)
        if request is not None and not request.answered:
            request.reply(response)

    def _handle(self, message: Message, payload: Payload) -> None:
        verb = message["do"]
        if verb == "response":
            self._answer(message["request"], response_of(message["response"], payload))
        elif verb == "cancelled":
            request = self._open.get(message["request"])
            self.link.answer(message, request is not None and request.is_cancelled())
        elif verb == "log":
            _log(message)
        elif verb == "hello":
            about = (self._name, self._process.pid, message["python"], message["prefix"])
            logger.info("instance '%s' is process %d: Python %s of %s", *about)
            self._greeted = True
            self._here.set()
        else:
            self._calls.handle(message, payload)


def _log(message: Message) -> None:
    """Write a record of the other process to our log, as if it came from here."""
    target = logging.getLogger(message["name"])
    level, (path, line) = message["level"], message["place"]
    if target.isEnabledFor(level):
        target.handle(target.makeRecord(target.name, level, path, line, "%s", (message["text"],), None))
