"""What the clock has to say about an HTTP/2 connection."""

from app.protocol.grpc import http2 as h2


class Keepalive:
    """Control frames a second, pings, and when the peer was last heard. All in seconds."""

    def __init__(self, now: float) -> None:
        self.born = self.heard = now
        self.ping_sent = 0.0
        self.strikes = 0
        self._last_ping = float("-inf")
        self._second = 0
        self._counts = [0, 0]

    def count(self, is_reset: bool, limit: int, frames: int = 1) -> None:
        """Count control frames; raises ENHANCE_YOUR_CALM above `limit` of their sort a second."""
        if int(self.heard) != self._second:
            self._second, self._counts = int(self.heard), [0, 0]
        self._counts[is_reset] += frames
        if self._counts[is_reset] > limit:
            raise h2.Http2Error(h2.ENHANCE_YOUR_CALM, "too many resets" if is_reset else "too many frames")

    def too_many_pings(self, interval: float, strikes: int) -> bool:
        """Count a ping that came too early after the last one, and say whether those are too many."""
        self.strikes += self.heard - self._last_ping < interval
        self._last_ping = self.heard
        return bool(strikes) and self.strikes > strikes

    def wants_ping(self, now: float, interval: float) -> bool:
        """Whether it is time to ask whether the client is there; notes that it was asked."""
        if self.ping_sent or now - self.heard < interval:
            return False
        self.ping_sent = now
        return True

    def is_dead(self, now: float, timeout: float) -> bool:
        """Whether the client has not answered a ping in time."""
        return bool(self.ping_sent) and now - self.ping_sent > timeout
