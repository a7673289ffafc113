"""Calls of a model in a worker process to the rest of the server."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.inference import Cancel, cancel_nothing
from app.core.tensors import Buffer, InferRequest, InferResponse, failed
from backends.base import Request
from backends.python.api import server_api
from backends.python.api.calls import MAX_QUEUED
from backends.python.api.errors import TritonModelException
from backends.python.worker.framing import LinkClosed, Message, Payload
from backends.python.worker.link import Link
from backends.python.worker.link_codec import read_sent_request, response_fields

logger = logging.getLogger(__name__)


class ProcessCalls:
    """Executes the calls that arrive over a link."""

    def __init__(self, link: Link, name: str, requests: Mapping[int, Request]) -> None:
        """Use the requests that the model executes, by their numbers, as callers."""
        self._link = link
        self._name = name
        self._requests = requests
        self._cancels: dict[int, Cancel] = {}
        self._responses: queue.SimpleQueue[tuple[int, InferResponse] | None] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None
        self._verbs: dict[str, Callable[[Message, Payload], Any]] = {
            "load_model": _load_model,
            "unload_model": lambda m, _: server_api.current().unload_model(m["name"], m["dependents"]),
            "is_model_ready": lambda m, _: server_api.current().is_model_ready(m["name"], m["version"]),
        }

    def handle(self, message: Message, payload: Payload) -> None:
        """Handle a message, on the thread that serves the link, without blocking it."""
        verb = message["do"]
        if verb == "call":
            self._call(message, read_sent_request(message["request"], payload))
        elif verb == "cancel":
            cancel = self._cancels.get(message["call"])
            if cancel is not None:
                cancel(message["advice"])
        else:
            threading.Thread(target=self._manage, args=(message, payload), name=verb, daemon=True).start()

    def cancel(self) -> None:
        """Cancel the calls in flight."""
        for cancel in list(self._cancels.values()):
            cancel()

    def close(self) -> None:
        """Stop the thread that sends responses."""
        self._responses.put(None)

    def _call(self, message: Message, infer: InferRequest) -> None:
        number = message["call"]
        if self._sender is None:  # responses arrive on the data-plane loop, which a socket must not block
            self._sender = threading.Thread(target=self._send, name=f"{self._name} responses", daemon=True)
            self._sender.start()

        def receive(response: InferResponse) -> None:
            if response.final or self._responses.qsize() < MAX_QUEUED:
                self._responses.put((number, response))
                return
            self._cancels[number]()
            text = f"more than {MAX_QUEUED} responses are queued for the caller"
            busy = Failure(ErrorCode.UNAVAILABLE, text, FailureReason.REJECTED)
            self._responses.put((number, failed(busy)))

        self._cancels[number] = cancel_nothing
        try:
            callers = [self._requests.get(each) for each in message["callers"]]
            known = [caller for caller in callers if caller is not None]
            cancel = server_api.current().send(infer, receive, message["decoupled"], known)
        except Exception as error:
            receive(failed(error))
            return
        if number in self._cancels:
            self._cancels[number] = cancel

    def _send(self) -> None:
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """Send one response; return whether others may follow. No response lives until the next one."""
        item = self._responses.get()
        if item is None:
            return False
        number, response = item
        if response.final:
            self._cancels.pop(number, None)
        buffers: list[Buffer] = []
        fields = response_fields(response, buffers)
        try:
            self._link.send({"do": "response", "call": number, "response": fields}, buffers)
        except LinkClosed:
            return False
        return True

    def _manage(self, message: Message, payload: Payload) -> None:
        try:
            self._link.reply(message, self._verbs[message["do"]](message, payload))
        except LinkClosed:
            pass
        except InferError as error:
            self._link.reply_error(message, error.failure)
        except Exception as error:
            if not isinstance(error, TritonModelException):
                logger.exception("%s of instance '%s'", message["do"], self._name)
            self._link.reply_error(message, Failure(ErrorCode.UNAVAILABLE, str(error)))


def _load_model(message: Message, payload: Payload) -> None:
    files = {path: bytes(payload.read(size)) for path, size in message["files"]}
    server_api.current().load_model(message["name"], message["config"], files)
