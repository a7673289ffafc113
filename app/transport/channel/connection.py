"""The part of a connection that both ends share: frames, gathered writes, shared memory, its end."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from app.core.tensors import Buffer
from app.transport.channel.handshake import Peer, map_peer_arena
from app.transport.loops.busy_poll import BusyPoll
from app.transport.loops.reads import begin_read, end_read
from app.transport.memory.arena import ArenaReader, ArenaWriter
from app.transport.memory.lending import Borrower, Lender, Offer, released_key
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.control_messages import decode_offer, decode_release, encode_offer, encode_release
from app.transport.wire.frames import FULL_READ, Frame, FrameDecoder, Kind, encode_frame
from app.transport.wire.messages import FrameEncoder
from app.transport.wire.tensors import view_shared

if TYPE_CHECKING:
    from app.native.extension import ClientEnd, ServerEnd

_LENT_RELEASE_S: Final = 0.002
"""Seconds that the release of lent tensors waits for another frame to be sent, again while there are some."""
_JOIN_BELOW: Final = 16384
"""Buffers smaller than this are copied together; larger ones are handed to the transport as they are."""


class SendQueue:
    """The frames that an end of a connection is going to send.

    Attributes:
        frames: buffers to be written.
        nbytes: bytes of them.
        flush_scheduled: whether they will be written without anybody asking for it again.
        last_stream: the last stream that a client has opened.
    """

    __slots__ = ("flush_scheduled", "frames", "last_stream", "nbytes")

    def __init__(self) -> None:
        self.frames: list[Buffer] = []
        self.nbytes = 0
        self.flush_scheduled = False
        self.last_stream = 0


class Connection(asyncio.BufferedProtocol):
    """One end of an open connection, after the handshake.

    Frames queued in one iteration of the event loop are sent in one write: at the end of the received batch
    that caused them, or else in a callback at the next iteration. Not thread-safe, except that arena views
    may be dropped in any thread.

    Where the extension is compiled, a subclass has an end of it (`use_compiled`) in place of the `SendQueue`,
    which handles most small messages alone; a frame that it leaves, and those received with it that follow,
    are handled here.

    Attributes:
        on_frame: the method that handles a kind of frame; subclasses add the kinds that they receive.
        is_only: no other connection brings what could be handled together with what this one has brought.
    """

    on_frame: ClassVar[dict[int, Callable[[Any, Frame], None]]]
    is_only = False

    def __init__(self, settings: TransportSettings, arena: ArenaWriter | None, peer: Peer) -> None:
        """Make an end of a connection from what the handshake yielded.

        Raises:
            ProtocolError: the peer's arena cannot be mapped.
        """
        self.settings = settings
        self.arena = arena
        self.peer_arena: ArenaReader | None = map_peer_arena(peer, settings, self._slab_dropped)
        # Only a peer on this machine, which has our arena too, can map what is lent.
        self.lender = Lender(self._offer) if arena is not None else None
        self.borrower = Borrower(settings.max_arena_bytes, self._slab_dropped)
        self.encoder = FrameEncoder(settings, arena, self.lender)
        self.share, self.unshare = self.encoder.share, self.encoder.unshare
        self.closing = False
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._transport = cast(asyncio.Transport, None)
        self._decoder = FrameDecoder(
            settings.max_frame_bytes, settings.max_meta_bytes, settings.read_buffer_bytes, FULL_READ
        )
        self._out: SendQueue | ClientEnd | ServerEnd = SendQueue()
        self._take: Callable[[memoryview, int, int], int] | None = None
        self._busy_poll = BusyPoll(self._loop, settings.busy_poll_us)
        # While the transport has buffered enough.
        self._paused = False
        self._reading = True  # unless the peer reads too slowly what it asks for
        self._dropped: deque[int] = deque()
        self._release_scheduled = False
        self._releases = 0
        self._trim_timer: asyncio.TimerHandle | None = None
        self._trim_mark = 0
        self._cause: BaseException | None = None

    def use_compiled(self, end: "ClientEnd | ServerEnd | None") -> None:
        """Have an end of the extension, if any, handle what it knows; see `app/native/__init__.py`."""
        if end is not None:
            self._out, self._take = end, end.take

    @property
    def awaits_more(self) -> bool:
        """Whether the peer is expected to send something once it has what was written."""
        return False

    def connection_ended(self, cause: BaseException | None) -> None:
        """Handle the end of the connection; `cause` is None when it was closed in order."""
        raise NotImplementedError

    # Writing.

    @property
    def buffered_bytes(self) -> int:
        """Bytes queued or in the transport's send buffer."""
        return self._out.nbytes + (0 if self.closed else self._transport.get_write_buffer_size())

    def frame_queued(self, nbytes: int) -> None:
        """Count a frame that was appended to what is sent, and schedule a flush."""
        out = self._out
        out.nbytes += nbytes
        if not out.flush_scheduled:
            out.flush_scheduled = True
            self._loop.call_soon(self._flush)

    def send_frame(self, kind: Kind, stream: int = 0, meta: bytes = b"", flags: int = 0) -> None:
        """Queue one frame that has no payload.

        Raises:
            ValueError: the meta is larger than a peer accepts.
        """
        if len(meta) > self.settings.max_meta_bytes:
            raise ValueError(f"{len(meta)} bytes are more than the maximum of {self.settings.max_meta_bytes}")
        frame = encode_frame(kind, stream, meta, flags)
        self._out.frames.append(frame)
        self.frame_queued(len(frame))

    def _flush(self) -> None:
        out = self._out
        out.flush_scheduled = False
        queue = out.frames
        if not queue or self._paused or self.closing:
            return
        if self._dropped:  # a release costs no write of its own here
            self._append_release()
        out.frames = []
        nbytes, out.nbytes = out.nbytes, 0
        if nbytes <= _JOIN_BELOW or len(queue) == 1:
            self._transport.write(b"".join(queue) if len(queue) > 1 else queue[0])
        else:
            self._write_large(queue)
        if self.awaits_more:
            self._busy_poll.begin()

    def _write_large(self, queue: list[Buffer]) -> None:
        """Join runs of small buffers, and pass large ones on without a copy."""
        write = self._transport.write
        run: list[Buffer] = []
        for buffer in queue:
            if len(buffer) < _JOIN_BELOW:
                run.append(buffer)
                continue
            if run:
                write(b"".join(run))
                run = []
            write(buffer)
        if run:
            write(b"".join(run))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    # Reading.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        size = nbytes
        self._busy_poll.end()
        # Frames sent in response to this batch are written together at its end.
        out = self._out
        corked = not out.flush_scheduled
        out.flush_scheduled = True
        ends_read = self.is_only
        if ends_read:
            begin_read()
        on_frame, decoder, take = self.on_frame, self._decoder, self._take
        try:
            if take is not None:
                if decoder.taken(nbytes, take) or self.closing:
                    return
                nbytes = 0
            for frame in decoder.received(nbytes):
                handle = on_frame.get(frame.kind)
                if handle is None:
                    raise ProtocolError(f"this end does not accept frames of kind {frame.kind}")
                handle(self, frame)
                if self.closing:
                    break
        except (ProtocolError, MemoryError) as error:
            self.abort(error)
        finally:
            if ends_read:
                end_read(self._loop)
            if corked:
                self._flush()
            if size >= FULL_READ:
                self._give_way()

    def _give_way(self) -> None:
        """Read on in the loop's next turn: libuv reads again at once, up to 32 times, after a full read."""
        if not self.closing and self._transport.is_reading():
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._reading and not self.closing:
            self._transport.resume_reading()

    # Arena slabs.

    def view_shared(self, place: tuple[int, ...]) -> memoryview:
        """Return a view of a tensor that the peer has shared; `ProtocolError` without one at this place."""
        return view_shared(place, self.peer_arena, self.borrower)

    def _slab_dropped(self, offset: int) -> None:
        """Release a slab; called by the arena in any thread, also during garbage collection."""
        self._dropped.append(offset)
        if self._release_scheduled:
            return
        self._release_scheduled = True
        release = self._release if offset >= 0 else self._release_later
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(release)
            else:
                self._loop.call_soon_threadsafe(release)
        except RuntimeError:
            pass  # the loop is closed, and the connection with it

    def _release_later(self) -> None:
        """Delay the release of lent tensors: a RELEASE of its own would wake each process they passed."""
        self._release_scheduled = False  # first: what another thread drops from now on it schedules itself
        if not self.closed and self._dropped:
            self._release_scheduled = True
            self._loop.call_later(_LENT_RELEASE_S, self._release_rest, self._releases)

    def _release_rest(self, releases: int) -> None:
        """Release lent tensors, unless others were released with another frame since: more may follow."""
        if releases == self._releases:
            self._release()
        else:
            self._release_later()

    def _release(self) -> None:
        self._release_scheduled = False
        if not self.closed and self._dropped:
            self.frame_queued(self._append_release())

    def _append_release(self) -> int:
        """Queue a RELEASE of the dropped slabs; return the size of its frame in bytes."""
        dropped = self._dropped
        self._releases += 1
        offsets = [dropped.popleft() for _ in range(len(dropped))]
        frame = encode_frame(Kind.RELEASE, 0, encode_release(offsets))
        self._out.frames.append(frame)
        return len(frame)

    def _release_received(self, frame: Frame) -> None:
        arena = self.arena
        if arena is None:
            raise ProtocolError("release of a slab on a connection without an arena")
        for offset in decode_release(frame):
            if offset >= 0:
                arena.release(offset)
            elif self.lender is not None:
                self.lender.released(released_key(offset))
        if not arena.live and self._trim_timer is None:
            self._trim_mark = arena.allocations
            self._trim_timer = self._loop.call_later(self.settings.arena_trim_after, self._trim)

    def _offer(self, offer: Offer) -> None:
        self.send_frame(Kind.OFFER, 0, encode_offer(offer))

    def _accept_received(self, frame: Frame) -> None:
        if self.lender is not None:
            self.lender.accepted(frame.stream)

    def _offer_received(self, frame: Frame) -> None:
        offer = decode_offer(frame)
        if self.arena is not None and self.borrower.offered(offer):
            self.send_frame(Kind.ACCEPT, offer[0])

    on_frame = {
        Kind.RELEASE: _release_received,
        Kind.OFFER: _offer_received,
        Kind.ACCEPT: _accept_received,
    }

    def _trim(self) -> None:
        """Return the arena's memory to the kernel if it was not used since the timer was set."""
        self._trim_timer = None
        arena = self.arena
        if self.closed or arena is None or arena.live:
            return
        if arena.allocations == self._trim_mark:
            arena.trim()
        else:
            self._trim_mark = arena.allocations
            self._trim_timer = self._loop.call_later(self.settings.arena_trim_after, self._trim)

    # Its end.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.settings.write_high_water)

    def close(self) -> None:
        """Write what is queued, then close."""
        if not self.closing:
            self._paused = False
            self._flush()
            self.closing = True
            self._transport.close()

    def abort(self, cause: BaseException) -> None:
        """Close at once; queued frames are dropped."""
        if not self.closed:
            self._cause = self._cause or cause
            self.closing = True
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closing = self.closed = True
        if self._trim_timer is not None:
            self._trim_timer.cancel()
        self._out.frames, self._out.nbytes = [], 0
        self.peer_arena = None
        self.borrower.close()
        if self.lender is not None:
            self.lender.clear()
        try:
            self.connection_ended(self._cause or exc)
        finally:
            if self.arena is not None:
                self.arena.close()
                self.arena = None

    def statistics(self) -> dict[str, int]:
        """Return gauges and counters of this connection, for metrics."""
        arena, peer_arena = self.arena, self.peer_arena
        return {
            "buffered_bytes": self.buffered_bytes,
            "arena_bytes": arena.nbytes if arena else 0,
            "arena_used_bytes": arena.used_bytes if arena else 0,
            "arena_refusals": arena.refusals if arena else 0,
            "peer_arena_slabs": peer_arena.live if peer_arena else 0,
            "lent": self.lender.live if self.lender else 0,
            "borrowed": self.borrower.live,
        }
