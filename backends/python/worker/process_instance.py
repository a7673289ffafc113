"""An instance that a worker process executes: the replica's side."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from socket import socket
from typing import Any, ClassVar, Final, Protocol

from app.core.errors import InferError
from app.core.installed.own_modules import PREFIX
from app.core.tensors import SequenceId
from backends.base import Begun, Request
from backends.python.execution.execution import Clocked
from backends.python.worker.batch_codec import DETACHED, RESCHEDULED, Texts, encode_batch, read_outcome
from backends.python.worker.framing import LinkClosed, Payload
from backends.python.worker.link import CallLink
from backends.python.worker.process import Process

logger = logging.getLogger(__name__)

_COPIED_AT_ONCE: Final = 512 * 1024
"""A larger batch is a thread's: to copy it takes longer than to wake that thread."""


class Described(Protocol):
    """A dataclass of plain values that describes an instance to its worker process.

    The module `execution` of its package has the `Execution` of such instances.

    Attributes:
        model_name: the model.
        name: the instance's name.
        decoupled: whether a request has any number of responses.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model_name(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def decoupled(self) -> bool: ...


class ProcessInstance:
    """One instance in one run of a worker process; has most of the interface of an `Execution`.

    Attributes:
        process: the process.
    """

    def __init__(self, process: Process, described: Described, on_end: Callable[[], None]) -> None:
        """Add the instance to a process; `on_end` as for `Process.join`.

        Raises:
            LinkClosed: the process has ended, or is about to.
        """
        self.process = process
        self._described = described
        self._on_end = on_end
        self._tells_readiness = False
        self._over = threading.Event()
        self._texts = Texts()
        self._jobs = process.join(described.name, self._ended)

    def begin(self) -> None:
        """Import and initialise the model.

        Raises:
            InferError: INTERNAL with the model's exception, or when the process ended.
        """
        self._tells_readiness = self._request("start")

    def complete(self) -> Any:
        """Return what `completed` of the description's module returns."""
        return self._request("complete")

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        """Execute one batch; see `Execution.execute`. If the process ends, the requests fail."""
        process = self.process
        numbered = process.number(requests)
        try:
            value, payload = self._jobs.call_encoded(*encode_batch(numbered, self._texts))
            if self._described.decoupled:  # the responses that it has sent came over the other link
                process.link.request({"do": "flush"})
        except LinkClosed:
            process.fail_in_flight()
            return
        except BaseException:
            process.forget(numbered)
            raise
        self.deliver(numbered, value, payload, clock)

    def send(self, requests: Sequence[Request], clock: Clocked) -> "BegunBatch | None":
        """Begin to execute a batch; None where that takes a while, or the process has ended."""
        numbered = self.process.number(requests)
        begun = None
        try:
            message = encode_batch(numbered, self._texts)
            if sum(map(len, message.buffers)) <= _COPIED_AT_ONCE:
                self._jobs.send_encoded(*message)
                begun = BegunBatch(self, self._jobs, numbered, clock)
        except LinkClosed:
            pass
        finally:
            if begun is None:
                self.process.forget(numbered)
        return begun

    def deliver(self, numbered: Mapping[int, Request], value: Any, payload: Payload, clock: Clocked) -> None:
        """Note what the process replied to a batch, and reply to its requests."""
        process, decoupled = self.process, self._described.decoupled
        outcome = read_outcome(value, payload, {n: request.infer.id for n, request in numbered.items()})
        clock.compute_start_ns, clock.compute_end_ns = outcome.start_ns, outcome.end_ns
        for request, flags in zip(numbered.values(), outcome.flags, strict=True):
            request.detached, request.rescheduled = bool(flags & DETACHED), bool(flags & RESCHEDULED)
        for number, response in outcome.responses:
            process.deliver(number, response)
        for number, request in numbered.items():
            if request.rescheduled or not (decoupled or request.detached):
                process.in_flight.pop(number, None)

    def finalize_sequence(self, sequence_id: SequenceId) -> None:
        """Report the end of a sequence to the model, before the next batch."""
        try:
            self._jobs.send({"do": "finalize_sequence", "sequence": sequence_id})
        except LinkClosed:
            pass

    def is_ready(self, timeout: float) -> bool:
        """Return the result of the model's `is_ready`; False when the process does not reply in time."""
        if not self._tells_readiness:
            return not self.process.ended
        try:
            asked = {"do": "ready", "name": self._described.name}
            return bool(self.process.link.request(asked, timeout=timeout)[0])
        except (LinkClosed, TimeoutError):
            return False

    def wait(self) -> str:
        """Wait until the process has ended, or the instance was stopped; return how it ended."""
        self._over.wait()
        return self.process.wait() if self.process.ended else ""

    def stop(self, timeout: float) -> None:
        """Finalize the model; the process ends with its last instance, killed after `timeout` seconds."""
        unanswered = False
        try:
            self._jobs.call({"do": "finalize"}, timeout=timeout)
        except (LinkClosed, InferError, TimeoutError) as error:
            unanswered = True
            logger.warning("process of instance '%s' is killed: %s", self._described.name, error)
        self.process.leave(self._jobs, at_once=unanswered)
        self._over.set()

    def _ended(self) -> None:
        self._over.set()
        self._on_end()

    def _request(self, verb: str) -> Any:
        described = self._described
        package = type(described).__module__.removeprefix(PREFIX).rpartition(".")[0]
        message = {"do": verb, "module": f"{package}.execution", "instance": asdict(described)}
        try:
            return self._jobs.call(message)[0]
        except LinkClosed:
            raise self.process.failed(self.process.wait()) from None


class BegunBatch(Begun):
    """A batch that an instance's process executes."""

    def __init__(
        self, place: ProcessInstance, jobs: CallLink, numbered: Mapping[int, Request], clock: Clocked
    ) -> None:
        self._place = place
        self._jobs = jobs
        self._numbered = numbered
        self._clock = clock
        self._reply: tuple[Any, Payload] | None = None
        self._error: Exception | None = None

    @property
    def source(self) -> object:
        return self._jobs

    def open_source(self) -> socket:
        return self._jobs.duplicate()

    def has_ended(self) -> bool:
        try:
            self._reply = self._jobs.take_reply(waits=False)
        except BlockingIOError:
            return False
        except LinkClosed as error:
            raise ConnectionError(str(error)) from error
        except Exception as error:
            self._error = error
        return True

    def finish(self) -> None:
        process, numbered = self._place.process, self._numbered
        if self._error is not None:
            process.forget(numbered)
            raise self._error
        try:
            reply = self._reply or self._jobs.take_reply()
        except LinkClosed:
            process.fail_in_flight()
        else:
            self._place.deliver(numbered, *reply, self._clock)


class Processes:
    """Where the instances of a model get their processes from.

    Attributes:
        shared: whether one process has all of them.
    """

    def __init__(self) -> None:
        self.shared = False
        self._lock = threading.Lock()
        self._last: Process | None = None

    def open(
        self, described: Described, python: Path, start_s: float, on_end: Callable[[], None] = lambda: None
    ) -> ProcessInstance:
        """Return an instance in a process: a new one, or one that is there.

        Raises:
            InferError: see `Process`.
        """
        with self._lock if self.shared else threading.Lock():
            if self._last is not None and not self._last.ended:
                try:
                    return ProcessInstance(self._last, described, on_end)
                except LinkClosed:
                    pass
            process = Process(described.name, described.model_name, python, start_s)
            if self.shared:
                self._last = process
        try:
            return ProcessInstance(process, described, on_end)
        except LinkClosed:
            raise process.failed(process.wait()) from None
