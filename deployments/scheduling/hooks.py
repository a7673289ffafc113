"""Triton's hooks for tests, read from the environment when a model is loaded.

A replica inherits the environment of the cluster that the server starts; of a cluster it joins, that
cluster's.
"""

import os
import re


def delay_scheduler() -> int:
    """How many requests must be queued before a batcher releases its first batch, 0 for no such wait."""
    return _number("TRITONSERVER_DELAY_SCHEDULER")


def backlog_delay_scheduler() -> int:
    """How many requests must be in the backlog before a sequence batcher begins, 0 for no such wait."""
    return _number("TRITONSERVER_BACKLOG_DELAY_SCHEDULER")


def _number(name: str) -> int:
    """The digits a variable begins with: what C's `atoi`, which Triton uses, makes of it."""
    digits = re.match(r"\s*\+?(\d{1,9})", os.environ.get(name, ""))
    return int(digits[1]) if digits else 0
