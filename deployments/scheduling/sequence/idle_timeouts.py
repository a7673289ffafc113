"""Which sequences rest, and for how long."""

import asyncio
from collections.abc import Callable

from deployments.scheduling.sequence.requests import Sequence


class Idleness:
    """Tells when a sequence has rested for too long. One timer for all: they rest equally long.

    Args:
        timeout_s: how long a sequence may rest.
        expired: called on the loop for each that did.
    """

    def __init__(self, timeout_s: float, expired: Callable[[Sequence], None]) -> None:
        self._timeout_s = timeout_s
        self._expired = expired
        self._since: dict[Sequence, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def rest(self, sequence: Sequence) -> None:
        """The sequence has nothing to do from now on."""
        loop = asyncio.get_running_loop()
        self._since[sequence] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._look)

    def wake(self, sequence: Sequence) -> None:
        """The sequence has something to do, or is over."""
        self._since.pop(sequence, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._since:
            sequence, since = next(iter(self._since.items()))  # the one that rests longest
            if since + self._timeout_s > now:
                self._timer = loop.call_at(since + self._timeout_s, self._look)
                return
            del self._since[sequence]
            self._expired(sequence)
            if self._timer is not None:  # what expired let another sequence in, which rests already
                return
