"""Triton's hooks for tests, read from the environment when a model is loaded.

A replica inherits the environment of the cluster that the server starts; of a cluster it joins, that
cluster's.
"""

import os
import re
from typing import NamedTuple


def delay_scheduler() -> int:
    """How many requests must be queued before a batcher releases its first batch, 0 for no such wait."""
    return _number("TRITONSERVER_DELAY_SCHEDULER")


def backlog_delay_scheduler() -> int:
    """How many requests must be in the backlog too before a sequence batcher begins, 0 for no such wait."""
    return _number("TRITONSERVER_BACKLOG_DELAY_SCHEDULER")


class StartThreshold(NamedTuple):
    """What must be queued at a sequence model before anything executes.

    As in Triton the backlog counts with the direct strategy only, and only on top of the other hook.
    """

    queued: int
    backlog: int

    @classmethod
    def of_sequences(cls, direct: bool) -> "StartThreshold | None":
        """What the environment asks for; None for nothing."""
        queued = delay_scheduler()
        return cls(queued, backlog_delay_scheduler() if direct else 0) if queued else None

    def lifted(self, queued: int, backlog: int) -> bool:
        """Whether so many requests at instances, and so many in the backlog, are enough."""
        return queued >= self.queued and backlog >= self.backlog


def _number(name: str) -> int:
    """The digits a variable begins with: what C's `atoi`, which Triton uses, makes of it."""
    digits = re.match(r"\s*\+?(\d{1,9})", os.environ.get(name, ""))
    return int(digits[1]) if digits else 0
