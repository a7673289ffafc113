"""The output of a model's process: its log lines as they are, the model's own behind its name."""

import codecs
import re
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import IO, Final

_LAST_LINES: Final = 30
_LINE_BYTES: Final = 8192
_OURS: Final = re.compile(rb"(?:([IWEF])\d{4} \S+|\d{4}-\d\d-\d\dT\S+Z ([IWEF])) \d+ \S+\.py:\d+\]")
"""How lines of the server's log begin (`app/core/observability/log.py`)."""


class Output:
    """Copies the lines of a pipe to this process's output, on a thread of its own, until the pipe ends.

    Attributes:
        last: the last lines, for the error of a load during which the process ended.
    """

    def __init__(self, name: str, pipe: IO[bytes]) -> None:
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._name = name
        self._pipe = pipe
        self._thread = threading.Thread(target=self._copy, name=f"{name} output", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait until the pipe has ended; processes that the model has left running may hold it open."""
        self._thread.join(timeout)

    def _copy(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        with self._pipe as pipe:
            while line := pipe.readline(_LINE_BYTES):
                # A piece of a long line may end within a letter.
                text = decoder.decode(line, final=line.endswith(b"\n")).rstrip("\r\n")
                self.last.append(text)
                ours = _OURS.match(line)
                severe = ours is not None and b"I" not in ours.groups()
                with suppress(OSError, ValueError):  # the model must not fail because nobody reads
                    print(
                        text if ours else f"{self._name}: {text}",
                        file=sys.stderr if severe else sys.stdout,
                        flush=True,
                    )
