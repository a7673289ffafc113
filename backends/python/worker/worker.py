"""The worker process of an instance of a Python model: the process's side.

The main thread executes what comes over the link for executions, one thing at a time; another thread receives
the messages of the other link.
"""

import ctypes
import itertools
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from app.core.errors import Failure, InferError, internal
from app.core.tensors import Buffer, InferRequest, InferResponse
from backends.base import Request
from backends.python.api import metrics, server_api
from backends.python.api.calls import Calls
from backends.python.api.errors import TritonModelException, describe
from backends.python.execution import loader
from backends.python.execution.execution import Execution, completed
from backends.python.execution.instance import PythonInstance
from backends.python.worker.framing import LinkClosed, Message, MessageSocket, Payload, failure_fields
from backends.python.worker.link import Link
from backends.python.worker.link_codec import read_request, read_response, request_fields, response_fields

_PR_SET_PDEATHSIG: Final = 1


class Clock:
    """Times of a model's computation, `time.monotonic_ns`."""

    compute_start_ns = 0
    compute_end_ns = 0


class RemoteRequest(Request):
    """A request of the replica, identified by a number."""

    __slots__ = ("number",)

    def __init__(self, number: int, infer: InferRequest, worker: "Worker") -> None:
        super().__init__(infer, partial(worker.reply, number), partial(worker.cancelled, number))
        self.number = number


class Worker:
    """Executes one model for the replica at the other ends of two links."""

    def __init__(self, sock: socket.socket, jobs: socket.socket) -> None:
        self.link = Link(sock, self._handle)
        self._jobs = MessageSocket(jobs)
        self._execution: Execution | None = None
        self._calls: RemoteCalls | None = None
        self._batched: list[tuple[int, InferResponse]] | None = None
        self._verbs: dict[str, Callable[[Message, Payload], None]] = {
            "start": self._start,
            "complete": self._complete,
            "execute": self._execute,
            "finalize": self._finalize,
            "finalize_sequence": self._finalize_sequence,
        }

    def run(self) -> None:
        """Execute the requests of the replica until `finalize`, or until the replica has ended."""
        threading.Thread(target=self._serve, name="replica", daemon=True).start()
        self.link.send({"do": "hello", "python": sys.version.split()[0], "prefix": sys.prefix})
        while (received := self._jobs.receive()) is not None:
            message, payload = received
            try:
                self._verbs[message["do"]](message, payload)
            except InferError as error:
                self._reply_error(error.failure)
            except (Exception, SystemExit) as error:
                self._reply_error(internal(describe(error, loader.OUR_FOLDER)).failure)
            del received, message, payload  # or its tensors would live until the next one
        os._exit(1)  # the replica has ended

    def _reply(self, value: Any = None, buffers: Sequence[Buffer] = ()) -> None:
        self._jobs.send({"value": value}, buffers)

    def _reply_error(self, failure: Failure) -> None:
        self._jobs.send({"error": failure_fields(failure)})

    def _serve(self) -> None:
        try:
            self.link.serve()
        finally:
            os._exit(1)  # the replica has ended

    def _handle(self, message: Message, payload: Payload) -> None:
        verb = message["do"]
        if verb == "response":
            assert self._calls is not None
            self._calls.on_response(message, payload)
        elif verb == "metrics":
            self.link.reply(message, metrics.snapshot())
        elif verb == "flush":
            self.link.reply(message)
        elif verb == "ready":
            threading.Thread(target=self._report_ready, args=(message,), name="is_ready", daemon=True).start()

    def _start(self, message: Message, payload: Payload) -> None:
        instance = _instance(message["instance"])
        self._calls = RemoteCalls(self.link, message["caller"])
        server_api.install(self._calls)
        self._execution = Execution(instance)
        self._reply(hasattr(self._execution.model, "is_ready"))

    def _complete(self, message: Message, payload: Payload) -> None:
        self._reply(completed(_instance(message["instance"])))

    def _finalize(self, message: Message, payload: Payload) -> None:
        if self._execution is not None:
            self._execution.close()
        self._reply()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # do not wait for threads that the model left running

    def _finalize_sequence(self, message: Message, payload: Payload) -> None:
        assert self._execution is not None
        try:
            self._execution.finalize_sequence(message["sequence"])
        except Exception:
            logging.getLogger(__name__).exception("ending sequence %s", message["sequence"])

    def _report_ready(self, message: Message) -> None:
        assert self._execution is not None
        self.link.reply(message, self._execution.is_ready())

    def _execute(self, message: Message, payload: Payload) -> None:
        assert self._execution is not None
        numbers = [number for number, _ in message["requests"]]
        requests = [self._request(number, fields, payload) for number, fields in message["requests"]]
        clock = Clock()
        # Responses sent before the model returns are sent in one message.
        self._batched = None if self._execution.instance.decoupled else []
        try:
            self._execution.execute(requests, clock)
        finally:
            batched, self._batched = self._batched or [], None
        value, buffers = _executed(numbers, requests, clock), list[Buffer]()
        value["responses"] = [(number, response_fields(response, buffers)) for number, response in batched]
        self._reply(value, buffers)

    def _request(self, number: int, fields: dict[str, Any], payload: Payload) -> Request:
        return RemoteRequest(number, read_request(fields, payload), self)

    def reply(self, number: int, response: InferResponse) -> None:
        """Send a response, at once or, during an execution, together with others when the model returns."""
        batched = self._batched
        if batched is not None and threading.current_thread() is threading.main_thread():
            batched.append((number, response))
            return
        buffers: list[Buffer] = []
        fields = response_fields(response, buffers)
        self.link.send({"do": "response", "request": number, "response": fields}, buffers)

    def cancelled(self, number: int) -> bool:
        """Whether a request was cancelled."""
        return bool(self.link.request({"do": "cancelled", "request": number})[0])


class RemoteCalls(Calls):
    """The `backends.python.api.server_api.ServerApi` of this process: calls over the link."""

    def __init__(self, link: Link, caller: str) -> None:
        super().__init__(caller)
        self._link = link
        self._numbers = itertools.count(1)
        self._sinks: dict[int, Callable[[InferResponse], None]] = {}

    def submit(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Callable[[], None]:
        number = next(self._numbers)
        self._sinks[number] = sink
        buffers: list[Buffer] = []
        fields = request_fields(infer, buffers)
        numbers = [caller.number for caller in callers if isinstance(caller, RemoteRequest)]
        message = {
            "do": "call",
            "call": number,
            "request": fields,
            "decoupled": decoupled,
            "callers": numbers,
        }
        try:
            self._link.send(message, buffers)
        except Exception:
            del self._sinks[number]
            raise
        return lambda: self._link.send({"do": "cancel", "call": number})

    def on_response(self, message: Message, payload: Payload) -> None:
        """Pass a response to its call."""
        response = read_response(message["response"], payload)
        sink = (self._sinks.pop if response.final else self._sinks.get)(message["call"], None)
        if sink is not None:
            sink(response)

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        heads = [(path, len(data)) for path, data in files.items()]
        self._manage({"do": "load_model", "name": name, "config": config, "files": heads}, [*files.values()])

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self._manage({"do": "unload_model", "name": name, "dependents": unload_dependents})

    def is_model_ready(self, name: str, version: str) -> bool:
        return bool(self._link.request({"do": "is_model_ready", "name": name, "version": version})[0])

    def _manage(self, message: Message, buffers: Sequence[Buffer] = ()) -> None:
        try:
            self._link.request(message, buffers)
        except InferError as error:
            raise TritonModelException(error.message) from error


class LogSender(logging.Handler):
    """Sends log records to the replica."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        place = (record.pathname, record.lineno)
        try:
            self._link.send(
                {"do": "log", "name": record.name, "level": record.levelno, "text": text, "place": place}
            )
        except LinkClosed:
            pass


def run(*descriptors: int) -> None:
    """Serve the replica at the other end of two sockets, one of them for executions; never return."""
    # If the replica is killed, this ends a model that never releases the interpreter lock.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    worker = Worker(*(socket.socket(fileno=descriptor) for descriptor in descriptors))
    log = logging.getLogger("backends")
    log.handlers = [LogSender(worker.link)]
    log.setLevel(logging.DEBUG)
    log.propagate = False
    worker.run()


def _instance(fields: dict[str, Any]) -> PythonInstance:
    for name in ("outputs", "states", "bf16"):
        fields[name] = tuple(fields[name])
    return PythonInstance(**fields)


def _executed(numbers: list[int], requests: list[Request], clock: Clock) -> dict[str, Any]:
    flags = [(n, r.detached, r.rescheduled) for n, r in zip(numbers, requests, strict=True)]
    return {"flags": flags, "start_ns": clock.compute_start_ns, "end_ns": clock.compute_end_ns}
