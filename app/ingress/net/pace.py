"""The minimum rate at which clients send requests and read responses."""


class Pace:
    """Judges one direction of a connection: whether its client keeps up the minimum rate.

    The rate is an average over `period` seconds: a client that pauses for less is not slow, nor is one for
    which nothing waits. No progress at all is too slow at any rate.
    """

    __slots__ = ("_done", "_least", "_period", "_since", "_transfer")

    def __init__(self, period: float, rate: int) -> None:
        """
        Args:
            period: in seconds; 0 for no limit.
            rate: in bytes per second.
        """
        self._period = period
        self._least = max(1.0, rate * period)
        self._transfer = 0.0
        self._since = 0.0
        self._done = 0

    def is_slow(self, now: float, transfer: float, done: int) -> bool:
        """Return whether the client was too slow since it was last fast enough; called about once a second.

        Args:
            now: in seconds.
            transfer: what tells a transfer from the one before, such as when it began; 0 while nothing waits.
            done: bytes transferred, from any start.
        """
        if not transfer or transfer != self._transfer or done - self._done >= self._least:
            self._transfer, self._since, self._done = transfer, now, done
            return False
        return bool(self._period) and now - self._since > self._period
