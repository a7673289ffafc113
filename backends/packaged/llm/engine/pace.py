"""How many tokens of new prompts a step reads beside the texts that are being continued."""

from collections import deque
from statistics import median
from typing import Final

LEAST: Final = 1
"""Tokens; where arithmetic bounds a step, as on CPUs, each takes nearly as long as one of a text."""
SHARE: Final = 0.7
"""Of the time of a step without prompts: so much may prompts add to it."""
LONGEST_S: Final = 0.1
"""Of a step's reading: between two steps texts join, and clients that left are noticed."""
_FIRST: Final = 64
_PLAIN_EVERY: Final = 32
"""Steps; one of them has no prompts, to see how long that takes now."""
_KNOWN: Final = 9
"""Durations whose median counts: a step that waited for others on a busy machine is no measure."""


class Pace:
    """Keeps the time that reading takes of running texts within limits, by the durations of earlier steps."""

    def __init__(self, most: int) -> None:
        """Read at most so many tokens a step."""
        self._most = most
        self._token_s: deque[float] = deque(maxlen=_KNOWN)
        self._plain_s: deque[float] = deque(maxlen=_KNOWN)
        self._since_plain = _PLAIN_EVERY

    def budget(self, continued: int) -> int:
        """Return how many tokens of prompts the next step may read, beside so many texts; 0 for none."""
        if not continued:
            return self._within(LONGEST_S)
        if self._since_plain >= _PLAIN_EVERY:
            return 0
        return self._within(min(LONGEST_S, SHARE * median(self._plain_s)))

    def _within(self, seconds: float) -> int:
        tokens = int(seconds / median(self._token_s)) if self._token_s else _FIRST
        return min(max(tokens, LEAST), self._most)

    def observe(self, continued: int, read: int, seconds: float) -> None:
        """Learn how long a step took."""
        if not read:
            self._since_plain = 0
            self._plain_s.append(seconds)
            return
        self._since_plain += 1
        alone = median(self._plain_s) if continued and self._plain_s else 0.0
        self._token_s.append(max(seconds - alone, 0.1 * seconds) / read)


def shares(unread: list[int], budget: int) -> list[int]:
    """Divide a budget among prompts of so many unread tokens: alike, but no more than each has."""
    found = [0] * len(unread)
    order = sorted(range(len(unread)), key=unread.__getitem__)
    for place, index in enumerate(order):
        found[index] = min(unread[index], -(-budget // (len(order) - place)))
        budget -= found[index]
    return found
