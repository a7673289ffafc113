"""One instance of a model in a worker process, which executes what comes over a link of its own."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from app.core.errors import Failure, InferError, internal
from app.core.tensors import Buffer, InferRequest, InferResponse, SequenceId
from backends.base import Request
from backends.python.api.errors import describe
from backends.python.execution import loader
from backends.python.execution.structs import import_ours
from backends.python.worker.batch_codec import (
    DETACHED,
    RESCHEDULED,
    Outcome,
    Texts,
    encode_outcome,
    read_batch,
)
from backends.python.worker.framing import RELEASED, Message, MessageSocket, Payload, failure_fields
from backends.python.worker.link import Link
from backends.python.worker.link_codec import response_fields


class Clock:
    """Times of a model's computation, `time.monotonic_ns`."""

    compute_start_ns = 0
    compute_end_ns = 0


class Executes(Protocol):
    """A loaded instance: `Execution` of the module that a description names.

    Attributes:
        decoupled: whether a request has any number of responses.
        tells_readiness: whether `is_ready` may ever be False.
        is_ready: whether it could execute now.
    """

    decoupled: bool
    tells_readiness: bool
    is_ready: Callable[[], bool]

    def execute(self, requests: Sequence[Request], clock: Clock) -> None:
        """Execute one batch."""

    def finalize_sequence(self, sequence_id: SequenceId) -> None:
        """Forget a sequence."""

    def close(self) -> None:
        """Unload the instance."""


class RemoteRequest(Request):
    """A request of the replica, identified by a number."""

    __slots__ = ("number",)

    def __init__(self, number: int, infer: InferRequest, worker: "InstanceWorker") -> None:
        super().__init__(infer, partial(worker.deliver, number), partial(worker.cancelled, number))
        self.number = number


class InstanceWorker:
    """Executes one instance for the replica."""

    def __init__(self, name: str, link: Link, jobs: MessageSocket) -> None:
        """Use the process's link, and one of the instance's own, by which its executions come."""
        self._name = name
        self._link = link
        self._jobs = jobs
        self._thread = 0
        self._texts = Texts()
        self._execution: Executes | None = None
        self._batched: list[tuple[int, InferResponse]] | None = None
        self._verbs: dict[str, Callable[[Message, Payload], None]] = {
            "start": self._start,
            "complete": self._complete,
            "execute": self._execute,
            "finalize": self._finalize,
            "finalize_sequence": self._finalize_sequence,
            RELEASED: lambda message, payload: None,
        }

    def run(self) -> None:
        """Do what the replica asks for until `finalize`; end the process when the replica has ended."""
        self._thread = threading.get_ident()
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """Do one thing; return whether another may follow."""
        received = self._jobs.receive()
        if received is None:
            os._exit(1)  # the replica has ended
        message, payload = received
        try:
            self._verbs[message["do"]](message, payload)
        except InferError as error:
            self._reply_error(error.failure)
        except (Exception, SystemExit) as error:
            self._reply_error(internal(describe(error, loader.OUR_FOLDER)).failure)
        return bool(message["do"] != "finalize")

    def report_ready(self, message: Message) -> None:
        """Answer whether the instance is ready."""
        assert self._execution is not None
        self._link.reply(message, self._execution.is_ready())

    def _reply(self, value: Any = None) -> None:
        self._jobs.send({"value": value})

    def _reply_error(self, failure: Failure) -> None:
        self._jobs.send({"error": failure_fields(failure)})

    def _start(self, message: Message, payload: Payload) -> None:
        module = import_ours(message["module"])
        self._execution = module.Execution(module.described(message["instance"]))
        self._reply(self._execution.tells_readiness)

    def _complete(self, message: Message, payload: Payload) -> None:
        module = import_ours(message["module"])
        self._reply(module.completed(module.described(message["instance"])))

    def _finalize(self, message: Message, payload: Payload) -> None:
        if self._execution is not None:
            self._execution.close()
        sys.stdout.flush()
        sys.stderr.flush()
        self._reply()

    def _finalize_sequence(self, message: Message, payload: Payload) -> None:
        assert self._execution is not None
        self._execution.finalize_sequence(message["sequence"])

    def _execute(self, message: Message, payload: Payload) -> None:
        assert self._execution is not None
        requests = [RemoteRequest(*each, self) for each in read_batch(message["requests"], payload)]
        clock = Clock()
        # Responses sent before the model returns are sent in one message.
        self._batched = None if self._execution.decoupled else []
        try:
            self._execution.execute(requests, clock)
        finally:
            batched, self._batched = self._batched or [], None
        ids = {request.number: request.infer.id for request in requests}
        flags = [DETACHED * request.detached + RESCHEDULED * request.rescheduled for request in requests]
        del requests  # so that the reply says that the memory of their tensors is free
        payload.drop()
        outcome = Outcome(clock.compute_start_ns, clock.compute_end_ns, flags, batched)
        self._jobs.send_encoded(*encode_outcome(outcome, ids, self._texts))

    def deliver(self, number: int, response: InferResponse) -> None:
        """Send a response, at once or, during an execution, together with others when the model returns."""
        batched = self._batched
        if batched is not None and threading.get_ident() == self._thread:
            batched.append((number, response))
            return
        buffers: list[Buffer] = []
        fields = response_fields(response, buffers)
        self._link.send({"do": "response", "request": number, "response": fields}, buffers)

    def cancelled(self, number: int) -> bool:
        """Whether a request was cancelled."""
        return bool(self._link.request({"do": "cancelled", "request": number})[0])
