"""The minimum rate at which the requests of gRPC calls arrive."""

from collections.abc import Iterator, Mapping
from typing import Final

from app.ingress.http2.stream import Stream
from app.ingress.net.pace import Pace

TOO_SLOW: Final = "the request arrives too slowly: less than {:g} bytes in {:g} seconds"
"""The text of a call that is refused for it."""


class Uploads:
    """Judges the calls of a connection whose clients have not sent all of a message.

    A unary call waits for its message from its first header on; a stream may be silent between messages.

    Args:
        period: seconds to receive a message, more for one that comes at the rate; 0 for no limit.
        rate: in bytes per second.
    """

    def __init__(self, period: float, rate: int) -> None:
        self._period = period
        self._rate = rate
        self._paces: dict[int, Pace] = {}

    @property
    def text(self) -> str:
        """Why a call is refused."""
        return TOO_SLOW.format(max(1.0, self._rate * self._period), self._period)

    def slow(self, now: float, streams: Mapping[int, Stream]) -> Iterator[Stream]:
        """Yield the calls that are too slow; called about once a second, with the connection's streams."""
        before, self._paces = self._paces, {}
        for number, stream in list(streams.items()):
            if stream.ended or stream.receiver is None:
                continue
            message, received = stream.receiver.arriving()
            if not message:
                continue
            pace = self._paces[number] = before.get(number) or Pace(self._period, self._rate)
            if pace.is_slow(now, message, received):
                yield stream

    def pause(self) -> None:
        """Forget how fast messages came: nothing is read from the connection now."""
        self._paces = {}
