"""The tape that a command reads: what of it cannot be read is told, whichever command that is."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from nereid_client.tape.reader import Tape


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Tape]:
    """Open a tape for as long as a command reads it; then tell what could not be read of it.

    Raises:
        TapeError: there is no tape, or a file that is named is none.
        OSError: it cannot be read.
    """
    with Tape(path) as tape:
        try:
            yield tape
        finally:
            tell(tape.troubles)


def tell(troubles: Iterable[str]) -> None:
    """Print sentences on standard error, each once: a run may read its tape several times."""
    for trouble in troubles:
        _once(trouble)


@cache
def _once(trouble: str) -> None:
    print(trouble, file=sys.stderr)
