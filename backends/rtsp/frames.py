"""Frames on their way from the decoder: which are sent, when they are shown, and their pixels."""

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

import numpy as np
from av import VideoFrame
from av.video.reformatter import VideoReformatter

from app.core.buffers import allocate
from app.core.tensors import Tensor

_GAP_US: Final = 10_000_000
"""Times that differ by more from those before them do not continue them."""
_USUAL_FRAME_US: Final = 40_000
_WINDOW_BYTES: Final = 64 << 20
"""Memory of frames that were sent, for each stream; a quarter of what a process shares at once."""


class PresentationTimes:
    """Times in microseconds after the first frame, which never go back, whatever the source says."""

    def __init__(self) -> None:
        self._last = -1
        self._offset: int | None = None

    def of(self, frame: VideoFrame, frame_us: int = 0) -> int:
        """Return the time of the next frame; `frame_us` is the usual time between two."""
        follows = 0 if self._last < 0 else self._last + (frame_us or _USUAL_FRAME_US)
        if frame.pts is None or frame.time_base is None:
            self._last = follows
            return follows
        raw = round(frame.pts * frame.time_base * 1_000_000)
        if self._offset is None or abs(raw + self._offset - follows) > _GAP_US:
            self._offset = follows - raw
        self._last = max(self._last, raw + self._offset)
        return self._last

    def interrupted(self, seconds: float) -> None:
        """Go on so many seconds later, with a source that counts from another time."""
        self._offset = None
        self._last += max(0, round(seconds * 1_000_000))


class FrameRate:
    """Chooses frames so that there are at most so many a second of the video."""

    def __init__(self, fps: float) -> None:
        """`fps` 0 chooses all."""
        self._step = 1_000_000 / fps if fps else 0.0
        self._due = 0.0

    def wants(self, time_us: int) -> bool:
        """Return whether a frame of this time is sent."""
        # A thousandth of a step early is on time: times are rounded to microseconds.
        if time_us < self._due - self._step / 1000:
            return False
        self._due = max(self._due + self._step, time_us)
        return True


class Window:
    """Counts frames that have been sent and whose memory somebody still uses.

    The memory of a response is shared with the process that forwards it until that has written it to the
    client, and with a model on this machine that called ours until that drops it. So who reads slowly holds
    frames, and this is where a stream waits for them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._bytes = 0
        self._numbers = itertools.count()
        # Not an event or a condition: memory may be freed within garbage collection, on a thread that has
        # its lock.
        self._freed: SimpleQueue[int] = SimpleQueue()

    def wait(self, timeout: float) -> bool:
        """Return whether there is room for another frame, after at most so many seconds."""
        try:
            while True:
                self._drop(self._freed.get_nowait())
        except Empty:
            pass
        if self._has_room():
            return True
        try:
            self._drop(self._freed.get(timeout=timeout))
        except Empty:
            return False
        return self._has_room()

    def add(self, memory: memoryview) -> None:
        """Count memory until its last view is gone."""
        number = next(self._numbers)
        freed = self._freed
        self._held[number] = weakref.ref(memory.obj, lambda _: freed.put(number)), memory.nbytes
        self._bytes += memory.nbytes

    def _drop(self, number: int) -> None:
        _, nbytes = self._held.pop(number)
        self._bytes -= nbytes

    def _has_room(self) -> bool:
        return len(self._held) < self._limit and (self._bytes < _WINDOW_BYTES or not self._held)


class Decoded(NamedTuple):
    """A frame, its number in the stream from 0, and when it is shown: microseconds after the first."""

    frame: VideoFrame
    number: int
    time_us: int


class FrameQueue:
    """Decoded frames that wait to be sent; full, it drops the oldest or has the decoder wait.

    Attributes:
        dropped: frames that were dropped.
    """

    def __init__(self, limit: int, drops: bool) -> None:
        self.dropped = 0
        self._limit = limit
        self._drops = drops
        self._items: deque[Decoded] = deque()
        self._changed = threading.Condition()
        self._ended = False

    def put(self, frame: Decoded) -> bool:
        """Add a frame; return False if nobody wants it any more."""
        with self._changed:
            while len(self._items) >= self._limit and not self._ended:
                if self._drops:
                    self._items.popleft()
                    self.dropped += 1
                else:
                    self._changed.wait()
            if self._ended:
                return False
            self._items.append(frame)
            self._changed.notify_all()
            return True

    def get(self, timeout: float) -> Decoded | None:
        """Return the oldest frame; None when none arrives in time, or at the end."""
        with self._changed:
            if not self._items and not self._ended:
                self._changed.wait(timeout)
            item = self._items.popleft() if self._items else None
            self._changed.notify_all()
            return item

    @property
    def finished(self) -> bool:
        """Whether no frame is left and none will come."""
        return self._ended and not self._items

    def end(self) -> None:
        """Take no further frames."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Converter:
    """Turns decoded frames into tensors UINT8 [height, width, 3], RGB."""

    def __init__(self, size: tuple[int, int] | None, allocated: Callable[[memoryview], None]) -> None:
        """`size` is height and width, None for the frame's own; `allocated` is told of all memory."""
        self._size = size
        self._allocated = allocated
        self._reformatter = VideoReformatter()

    def tensor(self, frame: VideoFrame) -> Tensor:
        """Return the pixels of a frame in memory of their own: FFmpeg uses a frame's again."""
        height, width = self._size or (frame.height, frame.width)
        rgb = self._reformatter.reformat(frame, width, height, "rgb24", threads=1)
        plane = rgb.planes[0]
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[:height, : width * 3]
        memory = allocate(height * width * 3)
        self._allocated(memory)
        np.frombuffer(memory, np.uint8).reshape(height, width * 3)[...] = rows
        return Tensor("FRAME", "UINT8", (height, width, 3), memory)
