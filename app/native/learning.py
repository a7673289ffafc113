"""What Python learns for the compiled way, and that it costs nobody anything where that fails."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

logger = logging.getLogger(__name__)

_told: Final[set[type[Exception]]] = set()
"""Failures to learn that are in the log; how many more of them there are is up to clients."""


@contextmanager
def not_learned() -> Iterator[None]:
    """Have nothing be learned where learning fails: requests are answered without it.

    What it fails on is a client's, who must not end a connection, the loop or a channel by it.
    """
    try:
        yield
    except Exception as error:
        level = logging.DEBUG if type(error) in _told else logging.WARNING
        _told.add(type(error))
        logger.log(level, "the look of a request or a response was not learned", exc_info=True)
