"""One stream: a thread that reads and decodes, and a thread that sends."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import av
import numpy as np
from av import VideoFrame

from app.core.errors import InferError, internal, unavailable
from app.core.system.pauses import growing_pause
from app.core.tensors import InferResponse, Tensor, failed
from backends.base import Model, Request
from backends.rtsp.frames import Converter, Decoded, FrameQueue, FrameRate, PresentationTimes, Window
from backends.rtsp.settings import Settings, StreamRequest
from backends.rtsp.source import Source

logger = logging.getLogger(__name__)

QUEUED: Final = 2
"""Decoded frames that wait to be sent."""
_TICK_S: Final = 0.05
"""How often a thread that waits looks whether the client has cancelled."""
_STALL_S: Final = 1.0
"""After so long without a freed frame one more is sent, as the client may be collecting them."""
_MAX_BAD: Final = 100
"""Damaged packets in a row after which a source is given up."""


class Counters:
    """Totals over the streams of a model."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values = {"frames_sent": 0, "frames_dropped": 0, "reconnects": 0}

    def add(self, name: str, count: int = 1) -> None:
        """Count; from any thread."""
        with self._lock:
            self.values[name] += count


class Stream:
    """Answers a request with the frames of its source."""

    def __init__(
        self,
        model: Model,
        request: Request,
        settings: Settings,
        wanted: StreamRequest,
        counters: Counters,
        ended: Callable[["Stream"], None],
    ) -> None:
        """Check what the request asks for; `ended` is called when the source is closed.

        Raises:
            InferError: see `Source`.
        """
        self._model = model
        self._request = request
        self._settings = settings
        self._wanted = wanted
        self._counters = counters
        self._ended = ended
        self._source = Source(settings, wanted)
        self._live = wanted.mode == "live"
        self._queue = FrameQueue(QUEUED, drops=self._live)
        self._stopped = threading.Event()
        self._failure: InferError | None = None
        infer = request.infer
        self._outputs = {output.name for output in infer.outputs} or {"FRAME", "PTS", "INDEX"}
        self._decoder = threading.Thread(target=self._decode, name=f"{model.name} decode", daemon=True)
        self._sender = threading.Thread(target=self._send, name=f"{model.name} send", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._decoder.start()
        self._sender.start()

    def stop(self, failure: InferError | None = None) -> None:
        """End it, from any thread; `failure` is the final response if there was none."""
        if failure is not None and self._failure is None:
            self._failure = failure
        self._stopped.set()
        self._queue.end()
        self._source.abort()

    def join(self, timeout: float) -> None:
        """Wait until its final response is sent."""
        self._sender.join(timeout)

    # The decoding thread

    def _decode(self) -> None:
        try:
            self._read()
        except InferError as error:
            self._failure = self._failure or error
        except Exception as error:
            logger.exception("reading '%s' for model '%s'", self._source.name, self._model.name)
            self._failure = self._failure or internal(f"reading '{self._source.name}' failed: {error}")
        finally:
            self._queue.end()
            self._source.close()

    def _read(self) -> None:
        """Read the source to its end; a live one has none, and is opened again."""
        reader = _Reader(self._source, self._wanted.fps)
        failures = 0
        while True:
            ended = time.monotonic()
            sent = reader.index
            error = self._read_once(reader)
            if self._stopped.is_set() or (error is None and not self._live):
                return
            if error is not None and not (self._live and reader.index):
                raise error
            failures = failures + 1 if reader.index == sent else 1
            if failures > self._settings.reconnects:
                reason = error.message if error is not None else "it ended"
                raise unavailable(
                    f"'{self._source.name}' was lost, and {self._settings.reconnects} attempts to open it"
                    f" again failed: {reason}"
                )
            pause = growing_pause(failures, self._settings.pause, self._settings.max_pause)
            logger.warning("'%s' was lost; opening it again in %g s", self._source.name, pause)
            if self._stopped.wait(pause):
                return
            self._counters.add("reconnects")
            reader.times.interrupted(time.monotonic() - ended if reader.index == sent else pause)

    def _read_once(self, reader: "_Reader") -> InferError | None:
        """Open the source and queue its frames; return why it failed, None at its end."""
        try:
            for frame in reader.frames():
                if not self._queue.put(frame):
                    break
        except InferError as error:
            return error
        except (OSError, av.FFmpegError) as error:
            return self._source.failure(error)
        return self._source.trouble()

    # The sending thread

    def _send(self) -> None:
        try:
            self._send_frames()
            failure = self._failure
        except Exception as error:
            logger.exception("sending frames of model '%s'", self._model.name)
            failure = internal(str(error) or repr(error))
        self.stop()
        # So that a client that starts its next stream upon the end of this one finds its place free.
        self._decoder.join(_STALL_S)
        self._counters.add("frames_dropped", self._queue.dropped)
        self._ended(self)
        infer = self._request.infer
        if failure is not None and not self._request.is_cancelled():
            self._request.deliver(failed(failure, infer.id))
        else:
            self._request.deliver(InferResponse(id=infer.id, final=True))

    def _send_frames(self) -> None:
        window = Window(self._settings.in_flight)
        converter = Converter(self._wanted.size, window.add)
        left = self._wanted.frames or -1
        waited = 0.0
        while left and not (self._queue.finished or self._stopped.is_set() or self._request.is_cancelled()):
            if not window.wait(_TICK_S):
                waited += _TICK_S
                if waited < _STALL_S:
                    continue
            decoded = self._queue.get(_TICK_S)
            if decoded is None:
                continue
            waited = 0.0
            self._deliver(converter, decoded)
            left -= 1

    def _deliver(self, converter: Converter, decoded: Decoded) -> None:
        tensors: list[Tensor] = []
        if "FRAME" in self._outputs:
            tensors.append(converter.tensor(decoded.frame))
        for name, value in (("PTS", decoded.time_us), ("INDEX", decoded.number)):
            if name in self._outputs:
                tensors.append(Tensor.from_array(name, np.array([value], np.int64)))
        self._counters.add("frames_sent")
        model = self._model
        self._request.deliver(
            InferResponse(model.name, model.version_text, tuple(tensors), self._request.infer.id, final=False)
        )


class _Reader:
    """Reads a source, any number of times one after the other.

    Attributes:
        index: frames decoded so far.
        times: when they are shown.
    """

    def __init__(self, source: Source, fps: float) -> None:
        self.index = 0
        self.times = PresentationTimes()
        self._source = source
        self._rate = FrameRate(fps)

    def frames(self) -> Iterator[Decoded]:
        """Open the source and yield the frames that are wanted."""
        container, stream = self._source.open()
        rate: Any = stream.average_rate
        frame_us = round(1_000_000 / rate) if rate else 0
        bad = 0
        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except av.InvalidDataError:  # lost packets are usual in live streams
                bad += 1
                if bad > _MAX_BAD:
                    raise
                continue
            bad = 0
            yield from self._chosen(frames, frame_us)

    def _chosen(self, frames: Sequence[VideoFrame], frame_us: int) -> Iterator[Decoded]:
        for frame in frames:
            self._source.check_size(frame.width, frame.height)
            time_us = self.times.of(frame, frame_us)
            self.index += 1
            if self._rate.wants(time_us):
                yield Decoded(frame, self.index - 1, time_us)
