"""Messages between a replica and the worker process of an instance, with tensors, over a stream socket.

A message is a JSON object, followed by the bytes of its tensors. From `SHARED_BYTES` on, these are in
shared memory: in an arena of the sender (`tensor_memory.py`) or, where that is full, in anonymous memory
(memfd) of their own, whose descriptor is passed along, sealed so that neither side can change or shrink what
the other reads. Data of clients is never unpickled.

The framing of `app.transport.wire` is not shared: it needs msgspec, which the environment of a worker may
lack, and it reads ahead, which would separate descriptors from their messages. 30 lines are in common.

    u32 size of the JSON | u64 size of the tensors' bytes | u32 where they lie in the arena |
    u8 what comes along | u16 number of releases | u32 for each: where the tensors lay | JSON | bytes

What comes along: nothing (0), a descriptor of memory of their own (1), a socket of a further link (2),
nothing because they lie in the arena (3), or the arena's descriptor, because they are the first there (4).
"""

import fcntl
import json
import mmap
import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct, pack, unpack
from typing import Any, Final, NamedTuple

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.tensors import Buffer
from backends.python.worker.tensor_memory import ReceivedTensors, SentTensors, padded

Message = dict[str, Any]

SHARED_BYTES: Final = 64 * 1024
_MAX_JSON: Final = 1 << 30
_HEAD: Final = Struct("<IQIBH")
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_EMPTY: Final = memoryview(b"")
RELEASED: Final = "released"
"""What a message does that only says where tensors lay that are no longer used."""
_TELL_S: Final = 2.0
_JSON: Final = json.JSONEncoder(separators=(",", ":"))
_INLINE, _SHARED, _SOCKET, _ARENA, _ARENA_FIRST = range(5)
_WITH_DESCRIPTOR: Final = (_SHARED, _SOCKET, _ARENA_FIRST)
_ELSEWHERE: Final = (_SHARED, _ARENA, _ARENA_FIRST)
"""The tensors do not follow the JSON."""


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
        self._position = padded(end)
        return view

    def drop(self) -> None:
        """Drop what is left: only buffers that were read keep the memory alive."""
        self._data = _EMPTY


class _Packed(NamedTuple):
    """A message to send, behind its head."""

    text: bytes
    size: int = 0
    along: int = _INLINE
    descriptor: int = -1
    offset: int = 0
    tensors: bytes = b""


class MessageSocket:
    """One end of a connection. Any thread may send; one at a time receives."""

    takes_sockets = False
    """Whether the other side may send sockets: a model's code must not fill this process's descriptors."""
    changes_tensors = False
    """Whether this side may write to the tensors that it receives."""
    tells_releases = True
    """Whether a message of its own says which tensors are no longer used here, if no other has said so."""

    def __init__(self, sock: socket.socket) -> None:
        """Use a connected stream socket."""
        self._socket = sock
        self._lock = threading.Lock()
        self._sender = 0
        self._deferred: deque[_Packed] = deque()
        self._sent = SentTensors()
        self._received = ReceivedTensors()
        self._tells = False

    def send(self, message: Message, buffers: Sequence[Buffer] = ()) -> None:
        """Send a message.

        Raises:
            LinkClosed: the other process has ended.
            TypeError: the message cannot be written as JSON.
            OSError: shared memory for the tensors cannot be allocated.
        """
        self._send(self._packed(_encoded(message), buffers))

    def send_socket(self, message: Message, sock: socket.socket) -> None:
        """Send a message with a socket, which is then the other side's: its `message["socket"]`.

        Raises:
            LinkClosed: the other process has ended.
        """
        self._send(_Packed(_encoded(message), along=_SOCKET, descriptor=sock.detach()))

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
            json_size, size, offset, along, releases = _HEAD.unpack(head)
            largest = json_size if along in _ELSEWHERE else max(json_size, size)
            if largest > _MAX_JSON or (along in _WITH_DESCRIPTOR) != bool(descriptors):
                raise ValueError("a message of an impossible size")
            if along == _SOCKET and not self.takes_sockets:
                raise ValueError("a message with a socket")
            if releases:
                self._sent.release(unpack(f"<{releases}I", self._exactly(4 * releases)))
            inline = 0 if along in _ELSEWHERE else size
            rest = memoryview(self._exactly(json_size + inline))
            message = json.loads(str(rest[:json_size], "utf-8"))
            if along == _SHARED:
                return message, Payload(_mapped(descriptors[0], size))
            if along == _ARENA_FIRST:
                self._received.map(descriptors[0], self.changes_tensors)
            if along in _ELSEWHERE:
                self._tell_later()
                return message, Payload(self._received.view(offset, size))
            if along == _SOCKET:
                message["socket"] = descriptors.pop()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return message, Payload(rest[json_size:])

    def _tell_later(self) -> None:
        """Tell the other side what is no longer used: without a next message its memory stayed in use."""
        if self.tells_releases and not self._tells:
            self._tells = True
            timer = threading.Timer(_TELL_S, self._tell)
            timer.daemon = True
            timer.start()

    def _tell(self) -> None:
        self._tells = False
        with suppress(LinkClosed):
            if self._received.has_released:
                self.send({"do": RELEASED})
            if self._received.live:
                self._tell_later()

    def shutdown(self) -> None:
        """End the connection for both sides, also while they receive."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket, when nobody uses it any more."""
        self._socket.close()
        self._sent.close()

    def _packed(self, text: bytes, buffers: Sequence[Buffer]) -> _Packed:
        size = sum(padded(len(buffer)) for buffer in buffers)
        if size < SHARED_BYTES:
            return _Packed(text, size, tensors=_joined(buffers))
        offset = self._sent.place(buffers, size)
        if offset is None:
            return _Packed(text, size, _SHARED, _shared(buffers, size))
        return _Packed(text, size, _ARENA, offset=offset)

    def _write(self, packed: _Packed) -> None:
        text, size, along, descriptor, offset, tensors = packed
        if along == _ARENA and (descriptor := self._sent.take_descriptor()) >= 0:
            along = _ARENA_FIRST
        released = self._received.take_released()
        head = _HEAD.pack(len(text), size, offset, along, len(released))
        data = b"".join((head, pack(f"<{len(released)}I", *released), text, tensors))
        if descriptor < 0:
            self._socket.sendall(data)
            return
        try:
            sent = socket.send_fds(self._socket, [data], [descriptor])
        finally:
            os.close(descriptor)
        self._socket.sendall(memoryview(data)[sent:])

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


def _encoded(message: Message) -> bytes:
    return _JSON.encode(message).encode()


def _joined(buffers: Sequence[Buffer]) -> bytes:
    parts: list[bytes] = []
    for buffer in buffers:
        parts += [bytes(buffer), bytes(padded(len(buffer)) - len(buffer))]
    return b"".join(parts)


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
            position += padded(len(view))
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
