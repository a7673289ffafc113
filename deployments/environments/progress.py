"""What is being done for environments in this process, for who waits for it."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_begun: Final[dict[int, tuple[str, float]]] = {}
_numbers: Final = itertools.count()


@contextmanager
def working(what: str) -> Iterator[None]:
    """List work while it is done."""
    number = next(_numbers)
    _begun[number] = what, time.monotonic()
    try:
        yield
    finally:
        del _begun[number]


def work() -> list[str]:
    """Return what is being done, with the seconds so far, the oldest first."""
    now = time.monotonic()
    return [f"{what} ({now - began:.0f} s)" for what, began in list(_begun.values())]
