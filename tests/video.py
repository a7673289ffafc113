"""Video that tests make: moving coloured rectangles, as H.264 files and as RTP packets."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]

PAYLOAD_TYPE = 96
_CLOCK = 90_000
_RTCP_TYPES = range(200, 205)


class Rectangle(NamedTuple):
    """A rectangle that moves at a constant speed, in pixels and pixels a frame."""

    colour: tuple[int, int, int]
    x: float
    y: float
    width: int
    height: int
    dx: float = 0.0
    dy: float = 0.0

    def box(self, index: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom at a frame, right and bottom outside."""
        left, top = round(self.x + self.dx * index), round(self.y + self.dy * index)
        return left, top, left + self.width, top + self.height


CROSSING = (
    Rectangle((220, 30, 30), 10, 40, 50, 40, dx=3),
    Rectangle((30, 200, 30), 250, 110, 40, 50, dx=-3),
)


def picture(index: int, width: int, height: int, rectangles: tuple[Rectangle, ...] = CROSSING) -> Picture:
    """Draw a frame, RGB [height, width, 3]."""
    image = np.full((height, width, 3), 40, np.uint8)
    for rectangle in rectangles:
        left, top, right, bottom = rectangle.box(index)
        image[max(0, top) : max(0, bottom), max(0, left) : max(0, right)] = rectangle.colour
    return image


def write_clip(
    path: Path | io.IOBase,
    frames: int = 30,
    width: int = 320,
    height: int = 180,
    fps: int = 30,
    rectangles: tuple[Rectangle, ...] = CROSSING,
    container: str | None = None,
    options: dict[str, str] | None = None,
) -> None:
    """Write a clip of moving rectangles, H.264 with a key frame every 15 frames and no B frames."""
    target: Any = str(path) if isinstance(path, Path) else path
    with av.open(target, "w", format=container, options=options or {}) as output:
        stream: Any = output.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", 15
        stream.options = {"preset": "ultrafast", "crf": "18", "bf": "0", "tune": "zerolatency"}
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(index, width, height, rectangles), format="rgb24")
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


class _PacketFile(io.RawIOBase):
    """Collects what the RTP muxer writes: a packet for each write."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.packets.append(bytes(data))
        return len(data)


def rtp_packets(frames: int = 30, **clip: Any) -> list[bytes]:
    """The RTP packets of a clip, made by FFmpeg's muxer; without its RTCP packets."""
    packets = _PacketFile()
    options = {"packetsize": "1200", "payload_type": str(PAYLOAD_TYPE)}
    write_clip(packets, frames, container="rtp", options=options, **clip)
    return [packet for packet in packets.packets if packet[1] not in _RTCP_TYPES]


def timed(packets: list[bytes]) -> Iterator[tuple[float, bytes]]:
    """RTP packets with their times in seconds after the first."""
    first = int.from_bytes(packets[0][4:8], "big")
    for packet in packets:
        ticks = (int.from_bytes(packet[4:8], "big") - first) % (1 << 32)
        yield ticks / _CLOCK, packet


def joined(*clips: list[bytes]) -> list[bytes]:
    """The packets of clips one after the other, a second between them."""
    packets, start = [], 0
    for clip in clips:
        last = start
        for at, packet in timed(clip):
            last = start + round(at * _CLOCK)
            packets.append(packet[:4] + last.to_bytes(4, "big") + packet[8:])
        start = last + _CLOCK
    return packets


SDP = (
    "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=test\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\na=control:*\r\n"
    f"m=video 0 RTP/AVP {PAYLOAD_TYPE}\r\na=rtpmap:{PAYLOAD_TYPE} H264/{_CLOCK}\r\n"
    f"a=fmtp:{PAYLOAD_TYPE} packetization-mode=1\r\na=control:track\r\n"
)
