"""The link between a replica and the process that executes its model: messages with tensors, both ways.

A message is a JSON object; the bytes of its tensors lie behind it, or from `SHARED_BYTES` on in anonymous
shared memory (memfd) that is sealed and passed along, so that neither side can change or shrink what the
other reads. Nothing of a client is ever unpickled.

    u32 size of the JSON | u64 size of the tensors' bytes | 1: they are in shared memory | JSON | bytes
"""

import fcntl
import itertools
import json
import mmap
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from struct import Struct
from typing import Any, Final, NamedTuple

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.tensors import Buffer

Message = dict[str, Any]

SHARED_BYTES: Final = 64 * 1024
_MAX_JSON: Final = 1 << 30
_ALIGNMENT: Final = 64
_HEAD: Final = Struct("<IQB")
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_EMPTY: Final = memoryview(b"")


class LinkClosed(Exception):
    """The other process is gone, or this side has closed the link."""


class Payload:
    """The bytes of a message's tensors, taken in the order in which they were put."""

    def __init__(self, data: memoryview = _EMPTY) -> None:
        self._data = data
        self._position = 0

    def take(self, nbytes: int) -> memoryview:
        """The next buffer, a view that keeps the memory alive.

        Raises:
            ValueError: there is not so much.
        """
        end = self._position + nbytes
        if nbytes < 0 or end > len(self._data):
            raise ValueError("a message has less data than its tensors claim")
        taken = self._data[self._position : end]
        self._position = _padded(end)
        return taken


class _Packed(NamedTuple):
    """A message as it is sent: its bytes, and the memory that goes with the first of them, -1 for none."""

    data: bytes
    descriptor: int


class Link:
    """One end. `ask` and `send` may be called from any thread; one thread runs `serve`."""

    def __init__(self, sock: socket.socket, handle: Callable[[Message, Payload], None]) -> None:
        """Use a connected stream socket; `handle` gets every message but answers, on the serving thread."""
        self._socket = sock
        self._handle = handle
        self._lock = threading.Lock()
        self._sender = 0
        self._deferred: deque[_Packed] = deque()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[tuple[Any, Payload]]] = {}
        self._closed = False

    def send(self, message: Message, buffers: Sequence[Buffer] = ()) -> None:
        """Send a message.

        Raises:
            LinkClosed: the other side is gone.
            TypeError: the message has no form in JSON.
            OSError: there is no shared memory for the tensors.
        """
        packed = _packed(message, buffers)
        if self._sender == threading.get_ident():  # a destructor, run while this thread is sending
            self._deferred.append(packed)
            return
        with self._lock:
            self._sender = threading.get_ident()
            try:
                self._write(packed)
                while self._deferred:
                    self._write(self._deferred.popleft())
            except OSError as error:
                raise LinkClosed(str(error)) from error
            finally:
                self._sender = 0

    def ask(
        self, message: Message, buffers: Sequence[Buffer] = (), timeout: float | None = None
    ) -> tuple[Any, Payload]:
        """Send a message and wait for its answer: a value, and the bytes of the tensors in it.

        Raises:
            InferError: the answer is an error.
            LinkClosed: the other side is gone.
            TimeoutError: no answer within `timeout` seconds.
        """
        number = next(self._numbers)
        future: Future[tuple[Any, Payload]] = Future()
        self._asked[number] = future
        try:
            if self._closed:
                raise LinkClosed("closed")
            self.send({**message, "ask": number}, buffers)
            return future.result(timeout)
        except FutureTimeout as error:  # before Python 3.11 not the built-in one
            raise TimeoutError(f"no answer within {timeout} s") from error
        finally:
            self._asked.pop(number, None)

    def answer(self, message: Message, value: Any = None, buffers: Sequence[Buffer] = ()) -> None:
        """Answer a message that asks."""
        self.send({"do": "answer", "to": message["ask"], "value": value}, buffers)

    def refuse(self, message: Message, failure: Failure) -> None:
        """Answer a message that asks with an error."""
        self.send({"do": "answer", "to": message["ask"], "error": failure_fields(failure)})

    def serve(self) -> None:
        """Take messages until the other side is gone; then fail whoever waits for an answer.

        Raises:
            Exception: a message that cannot be understood, or what `handle` raised.
        """
        try:
            while (received := self._receive()) is not None:
                message, payload = received
                if message["do"] == "answer":
                    self._answered(message, payload)
                else:
                    self._handle(message, payload)
        except (OSError, LinkClosed):
            pass
        finally:
            self._closed = True
            for future in list(self._asked.values()):
                if not future.done():
                    future.set_exception(LinkClosed("the process has ended"))

    def shutdown(self) -> None:
        """End `serve` on both sides."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket, once nobody serves it."""
        self._socket.close()

    def _answered(self, message: Message, payload: Payload) -> None:
        future = self._asked.get(message["to"])
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(failure_of(message["error"]).error())
        else:
            future.set_result((message["value"], payload))

    def _write(self, packed: _Packed) -> None:
        if packed.descriptor < 0:
            self._socket.sendall(packed.data)
            return
        try:
            sent = socket.send_fds(self._socket, [packed.data], [packed.descriptor])
        finally:
            os.close(packed.descriptor)
        self._socket.sendall(memoryview(packed.data)[sent:])

    def _receive(self) -> tuple[Message, Payload] | None:
        head, descriptors, _, _ = socket.recv_fds(self._socket, _HEAD.size, 1)
        if not head:
            return None
        try:
            head += self._exactly(_HEAD.size - len(head))
            json_size, size, shared = _HEAD.unpack(head)
            largest = json_size if shared else max(json_size, size)
            if largest > _MAX_JSON or bool(shared) != bool(descriptors):
                raise ValueError("a message of an impossible size")
            message = json.loads(self._exactly(json_size))
            if shared:
                return message, Payload(_mapped(descriptors[0], size))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return message, Payload(memoryview(self._exactly(size)))

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionResetError("the process ended in the middle of a message")
            view = view[count:]
        return data


def failure_fields(failure: Failure) -> list[str]:
    """Return a failure as plain values."""
    return [failure.code.value, failure.message, failure.reason.value]


def failure_of(fields: Sequence[str]) -> Failure:
    """Undo `failure_fields`."""
    code, message, reason = fields
    return Failure(ErrorCode(code), message, FailureReason(reason))


def _packed(message: Message, buffers: Sequence[Buffer]) -> _Packed:
    text = json.dumps(message, separators=(",", ":")).encode()
    size = sum(_padded(len(buffer)) for buffer in buffers)
    if size >= SHARED_BYTES:
        return _Packed(_HEAD.pack(len(text), size, 1) + text, _shared(buffers, size))
    parts = [_HEAD.pack(len(text), size, 0), text]
    for buffer in buffers:
        parts += [bytes(buffer), bytes(_padded(len(buffer)) - len(buffer))]
    return _Packed(b"".join(parts), -1)


def _padded(nbytes: int) -> int:
    return (nbytes + _ALIGNMENT - 1) & -_ALIGNMENT


def _shared(buffers: Sequence[Buffer], size: int) -> int:
    """Shared memory with a copy of the buffers, which nobody can change any more."""
    descriptor = os.memfd_create("nereid-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        position = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B") if len(buffer) else _EMPTY
            for start in range(0, len(view), _MAX_JSON):  # the kernel writes less than 2 GiB at a time
                part = view[start : start + _MAX_JSON]
                if os.pwrite(descriptor, part, position + start) != len(part):
                    raise OSError("the machine has no memory for the tensors of a message")
            position += _padded(len(view))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _mapped(descriptor: int, size: int) -> memoryview:
    """View shared memory; what is written to the view stays in this process."""
    # Without the seals the other side could cut the memory away under us, which would end this process.
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise ValueError("shared memory that is not sealed")
    if os.fstat(descriptor).st_size < size:
        raise ValueError("shared memory that is smaller than the message says")
    return memoryview(mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
