"""Triton's hooks for tests, read from the environment when a model is loaded.

A replica inherits the environment of the cluster: that of the server which starts it, or of the cluster that
the server joins.
"""

import os
import re
from typing import NamedTuple


def delay_scheduler() -> int:
    """Return how many requests must be queued before a batcher releases its first batch, 0 for any."""
    return _number("TRITONSERVER_DELAY_SCHEDULER")


def backlog_delay_scheduler() -> int:
    """Return how many requests a sequence batcher's backlog must have too before it starts, 0 for any."""
    return _number("TRITONSERVER_BACKLOG_DELAY_SCHEDULER")


class StartThreshold(NamedTuple):
    """Requests that must be queued at a sequence model before anything executes.

    As in Triton the backlog counts with the direct strategy only, and only on top of the other hook.
    """

    queued: int
    backlog: int

    @classmethod
    def for_sequences(cls, direct: bool) -> "StartThreshold | None":
        """Read the environment; None when it sets no threshold."""
        queued = delay_scheduler()
        return cls(queued, backlog_delay_scheduler() if direct else 0) if queued else None

    def is_reached(self, queued: int, backlog: int) -> bool:
        """Whether so many requests at instances, and so many in the backlog, are enough."""
        return queued >= self.queued and backlog >= self.backlog


def _number(name: str) -> int:
    """Return the number a variable begins with, as C's `atoi`, which Triton uses, reads it."""
    digits = re.match(r"\s*\+?(\d{1,9})", os.environ.get(name, ""))
    return int(digits[1]) if digits else 0
