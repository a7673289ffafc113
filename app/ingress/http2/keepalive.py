"""Keepalive pings, idle time and frame rates of an HTTP/2 connection."""

from app.protocol.grpc import http2 as h2


class Keepalive:
    """Counts control frames per second and decides about pings; all times are seconds of one clock."""

    def __init__(self, now: float) -> None:
        self.born = self.heard = now
        self.ping_sent = 0.0
        self.strikes = 0
        self._last_ping = float("-inf")
        self._second = 0
        self._counts = [0, 0]

    def count(self, is_reset: bool, limit: int, frames: int = 1) -> None:
        """Count control frames, resets separately; raise ENHANCE_YOUR_CALM above `limit` per second."""
        if int(self.heard) != self._second:
            self._second, self._counts = int(self.heard), [0, 0]
        self._counts[is_reset] += frames
        if self._counts[is_reset] > limit:
            raise h2.Http2Error(h2.ENHANCE_YOUR_CALM, "too many resets" if is_reset else "too many frames")

    def too_many_pings(self, interval: float, strikes: int) -> bool:
        """Count a ping if it came less than `interval` after the last; return whether that is too often."""
        self.strikes += self.heard - self._last_ping < interval
        self._last_ping = self.heard
        return bool(strikes) and self.strikes > strikes

    def wants_ping(self, now: float, interval: float) -> bool:
        """Return whether to ping an idle client, and if so record the ping as sent."""
        if self.ping_sent or now - self.heard < interval:
            return False
        self.ping_sent = now
        return True

    def is_dead(self, now: float, timeout: float) -> bool:
        """Return whether a ping has not been answered in time."""
        return bool(self.ping_sent) and now - self.ping_sent > timeout
