"""The two links between a replica and the worker process of an instance.

Executions go over one of their own, where the thread that asks receives the reply: a thread that received for
it would have to be woken on each side, which takes longer than the way between the processes.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from socket import socket
from typing import Any

from app.core.errors import Failure
from app.core.tensors import Buffer
from backends.python.worker.framing import (
    RELEASED,
    LinkClosed,
    Message,
    MessageSocket,
    Payload,
    encoded,
    failure_fields,
    read_failure,
)


class CallLink(MessageSocket):
    """The replica's end of the link for executions; the process's is a plain `MessageSocket`."""

    def __init__(self, sock: socket) -> None:
        super().__init__(sock)
        self._calling = threading.Lock()

    def call(
        self, message: Message, buffers: Sequence[Buffer] = (), timeout: float | None = None
    ) -> tuple[Any, Payload]:
        """Send a message and wait for its reply: a value, and the bytes of the tensors in it.

        Raises:
            InferError: the reply is an error.
            LinkClosed: the other process has ended, or sent a malformed message.
            TimeoutError: no reply within `timeout` seconds; the link is of no use any more.
            TypeError, OSError: see `send`.
        """
        return self.call_encoded(encoded(message), False, buffers, timeout)

    def call_encoded(
        self, text: bytes, again: bool, buffers: Sequence[Buffer], timeout: float | None = None
    ) -> tuple[Any, Payload]:
        """Do as `call`, for the JSON of a message; see `send_encoded`."""
        with self._calling:
            self._set_timeout(timeout)
            self.send_encoded(text, again, buffers)
            try:
                return self.take_reply()
            except TimeoutError as error:
                raise TimeoutError(f"no reply within {timeout} s") from error

    def _set_timeout(self, timeout: float | None) -> None:
        """Have the next send and reply wait: an event loop makes a socket that it watches non-blocking."""
        try:
            self._socket.settimeout(timeout)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def take_reply(self, waits: bool = True) -> tuple[Any, Payload]:
        """Return the reply to the message that was sent last; see `call`.

        Raises:
            BlockingIOError: it has not come yet, and this is not to wait for it.
        """
        reply, payload = self._receive_reply(waits)
        if "error" in reply:
            raise read_failure(reply["error"]).error()
        return reply["value"], payload

    def _receive_reply(self, waits: bool) -> tuple[Message, Payload]:
        try:
            received = self.receive(waits)
        except (BlockingIOError, TimeoutError):
            raise
        except (OSError, ValueError) as error:
            self.shutdown()
            raise LinkClosed(str(error)) from error
        if received is None:
            raise LinkClosed("the process has ended")
        return received


class Link(MessageSocket):
    """One end of the link for everything else. Any thread may ask; one runs `serve`."""

    def __init__(self, sock: socket, handle: Callable[[Message, Payload], None]) -> None:
        """Use one of a `pair` of sockets; `handle` receives all messages but replies, in `serve`."""
        super().__init__(sock)
        self._handle = handle
        self._numbers = itertools.count(1)
        self._pending: dict[int, Future[tuple[Any, Payload]]] = {}
        self._closed = False

    def request(
        self, message: Message, buffers: Sequence[Buffer] = (), timeout: float | None = None
    ) -> tuple[Any, Payload]:
        """Send a message and wait for its reply: a value, and the bytes of the tensors in it.

        Raises:
            InferError: the reply is an error.
            LinkClosed: the other process has ended.
            TimeoutError: no reply within `timeout` seconds.
        """
        number = next(self._numbers)
        future: Future[tuple[Any, Payload]] = Future()
        self._pending[number] = future
        try:
            if self._closed:
                raise LinkClosed("closed")
            self.send({**message, "id": number}, buffers)
            return future.result(timeout)
        except FutureTimeout as error:  # before Python 3.11 not the built-in one
            raise TimeoutError(f"no reply within {timeout} s") from error
        finally:
            self._pending.pop(number, None)

    def reply(self, message: Message, value: Any = None, buffers: Sequence[Buffer] = ()) -> None:
        """Reply to a message that was sent by `request`."""
        self.send({"do": "reply", "id": message["id"], "value": value}, buffers)

    def reply_error(self, message: Message, failure: Failure) -> None:
        self.send({"do": "reply", "id": message["id"], "error": failure_fields(failure)})

    def serve(self) -> None:
        """Receive messages until the other process has ended; then fail the pending requests.

        Raises:
            Exception: for a malformed message, or raised by `handle`.
        """
        try:
            while self._serve_next():
                pass
        except (OSError, LinkClosed):
            pass
        finally:
            self._closed = True
            for future in list(self._pending.values()):
                if not future.done():
                    future.set_exception(LinkClosed("the process has ended"))

    def _serve_next(self) -> bool:
        """Handle one message; return False at the end. No message's tensors live until the next one."""
        received = self.receive()
        if received is None:
            return False
        message, payload = received
        if message["do"] == "reply":
            self._on_reply(message, payload)
        elif message["do"] != RELEASED:
            self._handle(message, payload)
        return True

    def _on_reply(self, message: Message, payload: Payload) -> None:
        future = self._pending.get(message["id"])
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(read_failure(message["error"]).error())
        else:
            future.set_result((message["value"], payload))
