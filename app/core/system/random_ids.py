"""Identifiers that nobody can guess, for requests."""

import os
from typing import Final

_BYTES: Final = 16
_COUNT: Final = 256
_POOL: Final[list[str]] = []

os.register_at_fork(after_in_child=_POOL.clear)  # no two processes give the same


def random_id() -> str:
    """Return 32 hexadecimal digits, which the system has drawn.

    Many are drawn at once: a call of the system lets go of the interpreter's lock, and beside busy threads
    the event loop has it back only half a millisecond later.
    """
    try:
        return _POOL.pop()
    except IndexError:
        size = 2 * _BYTES
        drawn = os.urandom(_BYTES * _COUNT).hex()
        _POOL.extend([drawn[at : at + size] for at in range(size, len(drawn), size)])
        return drawn[:size]
