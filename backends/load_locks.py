"""Locks of what frameworks keep once in a process while they load a model.

A replica loads one model version. `nereid dev` and the in-process API load several at once, on threads, which
then meet in such a framework: PyTorch refuses to read a second exported program meanwhile, for instance.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Final

_LOCKS: Final[dict[str, RLock]] = {}


@contextmanager
def loading(framework: str) -> Iterator[None]:
    """Have the process to itself, as far as other loads by this framework go."""
    with _LOCKS.setdefault(framework, RLock()):
        yield
