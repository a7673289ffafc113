"""Messages between a replica and the worker process of an instance, with tensors, over a socket of packets.

A message is a JSON object, followed by the bytes of its tensors; one system call sends it, and one receives
it. From `SHARED_BYTES` on, the tensors are in shared memory: in an arena of the sender (`tensor_memory.py`)
or, where that is full, in anonymous memory (memfd) of their own, whose descriptor is passed along, sealed so
that neither side can change or shrink what the other reads. A JSON of that size is there too, before them.
Data of clients is never unpickled.

To write and to read JSON takes longer than all else that is done for a small message. So a message that
comes again and again is encoded once (`encoded`), and decoded once by each end that receives it: what
differs from one to the next is in a first buffer, as if it were a tensor.

The framing of `app.transport.wire` is not shared: it needs msgspec, which the environment of a worker may
lack, and it reads ahead, which would separate descriptors from their messages.

    u32 size of the JSON | u64 size of the tensors' bytes | u32 where they lie in the arena |
    u8 what comes along | u8 whether the JSON comes again | u16 number of releases |
    u32 for each: where the tensors lay | JSON | bytes

What comes along: nothing (0), a descriptor of memory of their own (1), a socket of a further link (2),
nothing because they lie in the arena (3), or the arena's descriptor, because they are the first there (4).
"""

import fcntl
import json
import mmap
import os
import socket
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct, pack, unpack_from
from typing import Any, Final, NamedTuple

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.tensors import Buffer
from app.transport.protocol import ALIGNMENT
from backends.python.worker.tensor_memory import ReceivedTensors, SentTensors, padded

Message = dict[str, Any]

SHARED_BYTES: Final = 64 * 1024
_PACKET_BYTES: Final = 4 * SHARED_BYTES
"""Room for the largest packet: a JSON and tensors of less than `SHARED_BYTES` each, and releases."""
_MAX_RELEASES: Final = 1024
"""In a message; the next one has the others."""
_MAX_KNOWN: Final = 256
"""Messages that come again of which an end keeps the decoded form."""
_PART_BYTES: Final = 1 << 30
_HEAD: Final = Struct("<IQIBBH")
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_EMPTY: Final = memoryview(b"")
_PADDING: Final = bytes(ALIGNMENT)
_ROOM: Final = socket.CMSG_SPACE(4)
"""For one descriptor."""
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


class Packed(NamedTuple):
    """A message to send, behind its head."""

    text: bytes
    size: int = 0
    along: int = _INLINE
    again: bool = False
    descriptor: int = -1
    offset: int = 0
    tensors: bytes = b""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the sockets of both ends of a connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encoded(message: Message) -> bytes:
    """Return the JSON of a message.

    Raises:
        TypeError: it cannot be written as JSON.
    """
    return _JSON.encode(message).encode()


class MessageSocket:
    """One end of a connection. Any thread may send; one at a time receives."""

    takes_sockets = False
    """Whether the other side may send sockets: a model's code must not fill this process's descriptors."""
    changes_tensors = False
    """Whether this side may write to the tensors that it receives."""
    tells_releases = True
    """Whether a message of its own says which tensors are no longer used here, if no other has said so."""

    def __init__(self, sock: socket.socket) -> None:
        """Use one of a `pair` of sockets."""
        self._socket = sock
        self._packet = memoryview(bytearray(_PACKET_BYTES))
        self._known: dict[bytes, Message] = {}
        self._lock = threading.Lock()
        self._sender = 0
        self._deferred: deque[Packed] = deque()
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
        self._send(self._packed(encoded(message), buffers))

    def send_encoded(self, text: bytes, again: bool, buffers: Sequence[Buffer]) -> None:
        """Send a message by its JSON; with `again` it comes again, and what differs is in the buffers.

        Raises:
            LinkClosed, OSError: see `send`.
        """
        self._send(self._packed(text, buffers, again))

    def send_socket(self, message: Message, sock: socket.socket) -> None:
        """Send a message with a socket, which is then the other side's: its `message["socket"]`.

        Raises:
            LinkClosed: the other process has ended.
        """
        self._send(Packed(encoded(message), along=_SOCKET, descriptor=sock.detach()))

    def _send(self, packed: Packed) -> None:
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

    def receive(self, waits: bool = True) -> tuple[Message, Payload] | None:
        """Wait for a message; return None when the other process has ended.

        A message that comes again is the same object each time.

        Raises:
            BlockingIOError: there is none yet, and it is not to wait.
            OSError: the connection was lost.
            ValueError: a malformed message.
        """
        flags = socket.MSG_CMSG_CLOEXEC if waits else socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        count, ancillary, _, _ = self._socket.recvmsg_into([self._packet], _ROOM, flags)
        if not count:
            return None
        if not ancillary:
            return self._read(self._packet[:count], [])
        descriptors = list(array("i", ancillary[0][2]))
        try:
            return self._read(self._packet[:count], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _read(self, packet: memoryview, descriptors: list[int]) -> tuple[Message, Payload]:
        """Return the message of a packet; take the descriptors that are kept."""
        if len(packet) < _HEAD.size:
            raise ValueError("a message without a head")
        json_size, size, offset, along, again, releases = _HEAD.unpack_from(packet)
        start = _HEAD.size + 4 * releases
        text_there = json_size >= SHARED_BYTES and along in _ELSEWHERE
        inline = (0 if text_there else json_size) + (0 if along in _ELSEWHERE else size)
        if start + inline != len(packet) or (along in _WITH_DESCRIPTOR) != bool(descriptors):
            raise ValueError("a message of an impossible size")
        if along == _SOCKET and not self.takes_sockets:
            raise ValueError("a message with a socket")
        if releases:
            self._sent.release(unpack_from(f"<{releases}I", packet, _HEAD.size))
        if along in _ELSEWHERE:
            payload = self._payload_elsewhere(along, offset, size, descriptors)
        else:
            payload = Payload(memoryview(bytearray(packet[len(packet) - size :])))
        text = payload.read(json_size) if text_there else packet[start : start + json_size]
        message = self._known_message(bytes(text)) if again else json.loads(str(text, "utf-8"))
        if along == _SOCKET:
            message["socket"] = descriptors.pop()
        return message, payload

    def _payload_elsewhere(self, along: int, offset: int, size: int, descriptors: list[int]) -> Payload:
        if along == _SHARED:
            return Payload(_mapped(descriptors[0], size))
        if along == _ARENA_FIRST:
            self._received.map(descriptors[0], self.changes_tensors)
        view = self._received.view(offset, size)
        self._tell_later()
        return Payload(view)

    def _known_message(self, text: bytes) -> Message:
        message = self._known.get(text)
        if message is None:
            message = json.loads(text)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[text] = message
        return message

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
            if self._received.held:  # also what was released after the question above
                self._tell_later()

    def duplicate(self) -> socket.socket:
        """Return a socket that is readable when this one is, and stays open when this one is closed."""
        return self._socket.dup()

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

    def _packed(self, text: bytes, buffers: Sequence[Buffer], again: bool = False) -> Packed:
        if len(text) >= SHARED_BYTES:
            buffers = [text, *buffers]
        size = 0
        for buffer in buffers:
            size += padded(len(buffer))
        if size < SHARED_BYTES:
            return Packed(text, size, _INLINE, again, tensors=_joined(buffers))
        offset = self._sent.place(buffers, size)
        if offset is None:
            return Packed(text, size, _SHARED, again, _shared(buffers, size))
        return Packed(text, size, _ARENA, again, offset=offset)

    def _write(self, packed: Packed) -> None:
        text, size, along, again, descriptor, offset, tensors = packed
        if along == _ARENA and (descriptor := self._sent.take_descriptor()) >= 0:
            along = _ARENA_FIRST
        released = self._received.take_released(_MAX_RELEASES)
        head = _HEAD.pack(len(text), size, offset, along, again, len(released))
        places = pack(f"<{len(released)}I", *released) if released else b""
        packet = b"".join((head, places, text if len(text) < SHARED_BYTES else b"", tensors))
        if descriptor < 0:
            self._socket.send(packet)
            return
        try:
            socket.send_fds(self._socket, [packet], [descriptor])
        finally:
            os.close(descriptor)


def failure_fields(failure: Failure) -> list[str]:
    """Return a failure as plain values."""
    return [failure.code.value, failure.message, failure.reason.value]


def read_failure(fields: Sequence[str]) -> Failure:
    """Undo `failure_fields`."""
    code, message, reason = fields
    return Failure(ErrorCode(code), message, FailureReason(reason))


def _joined(buffers: Sequence[Buffer]) -> bytes:
    parts: list[Buffer] = []
    for buffer in buffers:
        parts.append(buffer)
        parts.append(_PADDING[: -len(buffer) % ALIGNMENT])
    return b"".join(parts)


def _shared(buffers: Sequence[Buffer], size: int) -> int:
    """Return a descriptor of sealed shared memory with a copy of the buffers."""
    descriptor = os.memfd_create("nereid-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        position = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B") if len(buffer) else _EMPTY
            for start in range(0, len(view), _PART_BYTES):  # the kernel writes less than 2 GiB at once
                part = view[start : start + _PART_BYTES]
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
