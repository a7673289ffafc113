"""The worker process of one instance of a model, or of several: the process's side.

The main thread executes what comes over the link of the first instance, one thing at a time. Other instances
have a thread each, and one more receives the messages of the link that they share.
"""

import ctypes
import itertools
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from app.core.errors import InferError
from app.core.inference import Cancel
from app.core.installed.own_modules import PREFIX
from app.core.tensors import Buffer, InferRequest, InferResponse, failed
from app.native.strings import use_compiled_strings
from backends.base import Request
from backends.python.api import metrics, server_api
from backends.python.api.calls import Calls
from backends.python.api.errors import TritonModelException
from backends.python.worker.framing import LinkClosed, Message, MessageSocket, Payload
from backends.python.worker.instance_worker import InstanceWorker, RemoteRequest
from backends.python.worker.link import Link
from backends.python.worker.link_codec import read_sent_response, request_fields

_PR_SET_PDEATHSIG: Final = 1


class Worker:
    """Executes the instances of one model for the replica at the other end of a link."""

    def __init__(self, sock: socket.socket) -> None:
        self.link = Link(sock, self._handle)
        self.link.takes_sockets = self.link.changes_tensors = True
        self._instances: dict[str, InstanceWorker] = {}
        self._first: queue.SimpleQueue[InstanceWorker] = queue.SimpleQueue()
        self._calls: RemoteCalls | None = None

    def run(self) -> None:
        """Execute the requests of the replica until it says so, or has ended."""
        sys.argv = [""]  # as in Triton's stub: a model that parses arguments must not find ours
        threading.Thread(target=self._serve, name="replica", daemon=True).start()
        self.link.send({"do": "hello", "python": sys.version.split()[0], "prefix": sys.prefix})
        self._first.get().run()  # in the main thread, as in Triton's stub
        threading.Event().wait()  # others may execute

    def _serve(self) -> None:
        try:
            self.link.serve()
        finally:
            os._exit(1)  # the replica has ended

    def _handle(self, message: Message, payload: Payload) -> None:
        verb = message["do"]
        if verb == "response":
            assert self._calls is not None
            self._calls.receive(message, payload)
        elif verb == "open":
            self._open(message)
        elif verb == "metrics":
            self.link.reply(message, metrics.snapshot())
        elif verb == "flush":
            self.link.reply(message)
        elif verb == "ready":
            asked = partial(self._instances[message["name"]].report_ready, message)
            threading.Thread(target=asked, name="is_ready", daemon=True).start()
        elif verb == "exit":
            os._exit(0)  # do not wait for threads that the model left running

    def _open(self, message: Message) -> None:
        """Execute an instance, which has a link of its own."""
        if self._calls is None:
            self._calls = RemoteCalls(self.link, message["caller"])
            server_api.install(self._calls)
        name, jobs = message["name"], MessageSocket(socket.socket(fileno=message["socket"]))
        jobs.changes_tensors = True  # those of requests, as in Triton
        jobs.tells_releases = False  # the replica reads nothing there but replies, which say it
        first = not self._instances
        self._instances[name] = instance = InstanceWorker(name, self.link, jobs)
        if first:
            self._first.put(instance)
        else:
            threading.Thread(target=instance.run, name=name, daemon=True).start()


class RemoteCalls(Calls):
    """The `backends.python.api.server_api.ServerApi` of this process: calls over the link."""

    def __init__(self, link: Link, caller: str) -> None:
        super().__init__(caller)
        self._link = link
        self._numbers = itertools.count(1)
        self._sinks: dict[int, Callable[[InferResponse], None]] = {}

    def send(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Cancel:
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
        return partial(self._cancel, number)

    def _cancel(self, number: int, advice: bool = False) -> None:
        self._link.send({"do": "cancel", "call": number, "advice": advice})

    def receive(self, message: Message, payload: Payload) -> None:
        """Pass a response to its call."""
        response = read_sent_response(message["response"], payload)
        sink = (self._sinks.pop if response.final else self._sinks.get)(message["call"], None)
        if sink is not None:
            sink(response)

    def fail(self, error: InferError) -> None:
        """End the calls in flight with an error."""
        while self._sinks:
            _, sink = self._sinks.popitem()
            sink(failed(error))

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


def run(descriptor: int, compiled: bool = False) -> None:
    """Serve the replica at the other end of a socket; never return.

    Args:
        descriptor: the socket.
        compiled: have C split and join strings, where it was compiled for this Python.
    """
    if compiled:
        with suppress(ImportError):
            use_compiled_strings()
    # If the replica is killed, this ends a model that never releases the interpreter lock.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    worker = Worker(socket.socket(fileno=descriptor))
    log = logging.getLogger(f"{PREFIX}backends")
    log.handlers = [LogSender(worker.link)]
    log.setLevel(logging.DEBUG)
    log.propagate = False
    os.register_at_fork(after_in_child=_log_to_output)
    worker.run()


def _log_to_output() -> None:
    """Leave the link to the process that was forked, as its two users would release the same tensors."""
    logging.getLogger(f"{PREFIX}backends").handlers = [logging.StreamHandler()]
