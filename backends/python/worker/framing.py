"""Messages between a replica and the worker process of an instance, with tensors, over a stream socket.

A message is a JSON object, followed by the bytes of its tensors. From `SHARED_BYTES` on, these are in
anonymous shared memory (memfd), whose descriptor is passed along, sealed so that neither side can change or
shrink what the other reads. Data of clients is never unpickled.

The framing of `app.transport.wire` is not shared: it needs msgspec, which the environment of a worker may
lack, and it reads ahead, which would separate descriptors from their messages. 30 lines are in common.

    u32 size of the JSON | u64 size of the tensors' bytes | u8 what comes along | JSON | bytes

What comes along is a descriptor: none (0), the shared memory (1), or a socket of a further link (2).
"""

import fcntl
import json
import mmap
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
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
_INLINE, _SHARED, _SOCKET = range(3)


class LinkClosed(Exception):
    """The other process has ended, or this side has closed the link."""


class Payload:
    """The bytes of a message's tensors, read in the order in which they were added."""

    def __init__(self, data: memoryview = _EMPTY) -> None:
        self._data = data
        self._position = 0

    def read(self, nbytes: int) -> memoryview:
        """Return the next buffer, a view that keeps the memory alive.

        Raises:
            ValueError: fewer bytes are left.
        """
        end = self._position + nbytes
        if nbytes < 0 or end > len(self._data):
            raise ValueError("a message has less data than its tensors claim")
        view = self._data[self._position : end]
        self._position = _padded(end)
        return view


class _Packed(NamedTuple):
    """A message to send: its bytes, and the descriptor sent with the first of them, -1 for none."""

    data: bytes
    descriptor: int


class MessageSocket:
    """One end of a connection. Any thread may send; one at a time receives."""

    takes_sockets = False
    """Whether the other side may send sockets: a model's code must not fill this process's descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        """Use a connected stream socket."""
        self._socket = sock
        self._lock = threading.Lock()
        self._sender = 0
        self._deferred: deque[_Packed] = deque()

    def send(self, message: Message, buffers: Sequence[Buffer] = ()) -> None:
        """Send a message.

        Raises:
            LinkClosed: the other process has ended.
            TypeError: the message cannot be written as JSON.
            OSError: shared memory for the tensors cannot be allocated.
        """
        self._send(_packed(message, buffers))

    def send_socket(self, message: Message, sock: socket.socket) -> None:
        """Send a message with a socket, which is then the other side's: its `message["socket"]`.

        Raises:
            LinkClosed: the other process has ended.
        """
        text = json.dumps(message, separators=(",", ":")).encode()
        self._send(_Packed(_HEAD.pack(len(text), 0, _SOCKET) + text, sock.detach()))

    def _send(self, packed: _Packed) -> None:
        if self._sender == threading.get_ident():  # called by a destructor while this thread is sending
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

    def receive(self) -> tuple[Message, Payload] | None:
        """Wait for a message; return None when the other process has ended.

        Raises:
            OSError: the connection was lost in the middle of a message.
            ValueError: a malformed message.
        """
        head, descriptors, _, _ = socket.recv_fds(self._socket, _HEAD.size, 1)
        if not head:
            return None
        try:
            head += self._exactly(_HEAD.size - len(head))
            json_size, size, along = _HEAD.unpack(head)
            largest = json_size if along == _SHARED else max(json_size, size)
            if largest > _MAX_JSON or bool(along) != bool(descriptors):
                raise ValueError("a message of an impossible size")
            if along == _SOCKET and not self.takes_sockets:
                raise ValueError("a message with a socket")
            message = json.loads(self._exactly(json_size))
            if along == _SHARED:
                return message, Payload(_mapped(descriptors[0], size))
            if along == _SOCKET:
                message["socket"] = descriptors.pop()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return message, Payload(memoryview(self._exactly(size)))

    def shutdown(self) -> None:
        """End the connection for both sides, also while they receive."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket, when nobody uses it any more."""
        self._socket.close()

    def _write(self, packed: _Packed) -> None:
        if packed.descriptor < 0:
            self._socket.sendall(packed.data)
            return
        try:
            sent = socket.send_fds(self._socket, [packed.data], [packed.descriptor])
        finally:
            os.close(packed.descriptor)
        self._socket.sendall(memoryview(packed.data)[sent:])

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


def read_failure(fields: Sequence[str]) -> Failure:
    """Undo `failure_fields`."""
    code, message, reason = fields
    return Failure(ErrorCode(code), message, FailureReason(reason))


def _packed(message: Message, buffers: Sequence[Buffer]) -> _Packed:
    text = json.dumps(message, separators=(",", ":")).encode()
    size = sum(_padded(len(buffer)) for buffer in buffers)
    if size >= SHARED_BYTES:
        return _Packed(_HEAD.pack(len(text), size, _SHARED) + text, _shared(buffers, size))
    parts = [_HEAD.pack(len(text), size, _INLINE), text]
    for buffer in buffers:
        parts += [bytes(buffer), bytes(_padded(len(buffer)) - len(buffer))]
    return _Packed(b"".join(parts), -1)


def _padded(nbytes: int) -> int:
    return (nbytes + _ALIGNMENT - 1) & -_ALIGNMENT


def _shared(buffers: Sequence[Buffer], size: int) -> int:
    """Return a descriptor of sealed shared memory with a copy of the buffers."""
    descriptor = os.memfd_create("nereid-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        position = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B") if len(buffer) else _EMPTY
            for start in range(0, len(view), _MAX_JSON):  # the kernel writes less than 2 GiB at once
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
    """Return a view of shared memory; writes to it are private to this process."""
    # Without the seals the other process could truncate the memory, and reading it would end this one.
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise ValueError("shared memory that is not sealed")
    if os.fstat(descriptor).st_size < size:
        raise ValueError("shared memory that is smaller than the message says")
    return memoryview(mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
