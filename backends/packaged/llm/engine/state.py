"""What an engine does at a moment. Imports no framework."""

from typing import NamedTuple


class State(NamedTuple):
    """What an engine does.

    Attributes:
        running, waiting: the numbers of texts.
        usage: tokens of the running ones; 1 where as many run as may, each as long as it may be.
        queries, hits: tokens of prompts that the prefix cache was asked for, and that it had.
    """

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    queries: int = 0
    hits: int = 0
