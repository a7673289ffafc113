"""The limit on a rate. No clock of its own."""

from app.access.tokens import Rate


class RateLimiter:
    """Lets through `inferences` at once, and as many in each period: a leaky bucket (GCRA), one number.

    Args:
        rate: what it lets through.
    """

    __slots__ = ("_due", "_interval", "_slack")

    def __init__(self, rate: Rate) -> None:
        self._interval = rate.period / rate.inferences
        self._slack = rate.period - self._interval
        self._due = float("-inf")  # when the next inference would come at an even pace

    def wait(self, now: float) -> float:
        """Count an inference at `now`, in seconds, and return 0; or return the seconds until it may come."""
        early = self._due - self._slack - now
        if early > 1e-9:  # more than what is lost in adding
            return early
        due = self._due
        self._due = (due if due > now else now) + self._interval
        return 0.0
