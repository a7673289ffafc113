"""The standard output of a command, whose reader may have read enough: `| head`."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_GONE: Final = 1
"""The status of a command whose reader has gone away."""


@contextmanager
def until_read_enough() -> Iterator[None]:
    """End the program quietly, with status 1, when it prints for nobody any more.

    Commands tell any `OSError` as a failure of files or servers; this one passes them as `SystemExit`.
    """
    before = sys.stdout
    buffer: Any = getattr(before, "buffer", None)
    unbuffered = isinstance(buffer, io.FileIO)  # by PYTHONUNBUFFERED
    if not (
        isinstance(before, io.TextIOWrapper)
        and (unbuffered or isinstance(getattr(buffer, "raw", None), io.FileIO))
    ):
        yield  # a test's, or another program's that has called this one
        return
    before.flush()
    pipe = _Pipe(before.fileno())
    out: Any = pipe if unbuffered else io.BufferedWriter(pipe)
    line_buffering = before.line_buffering
    sys.stdout = io.TextIOWrapper(
        out, before.encoding, before.errors, None, line_buffering, before.write_through
    )
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = before


class _Pipe(io.FileIO):
    """Raises `SystemExit` where nobody reads; what is written after that is thrown away."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            raise SystemExit(_GONE) from None
