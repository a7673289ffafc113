"""The last lines of this process's log, in memory, for people who look at the server from elsewhere."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from app.core.errors import encodable

MAX_LINES: Final = 1000
MAX_LINE: Final = 4096
"""Characters of a line that are kept: 4 MiB of lines altogether."""
LEVELS: Final[dict[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class LogLine(msgspec.Struct, frozen=True):
    """A line of the log.

    Attributes:
        number: counts up from 1.
        at: Unix seconds.
        level: one of `LEVELS`.
        place: file and line of the program.
        text: its message, with a traceback where there is one.
    """

    number: int
    at: float
    level: str
    place: str
    text: str


class RecentLines(logging.Handler):
    """Keeps the last lines. Any thread may log."""

    def __init__(self, lines: int = MAX_LINES) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=lines)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record as a line."""
        text = record.getMessage()
        if record.exc_info and self.formatter is not None:
            text += "\n" + self.formatter.formatException(record.exc_info)
        level = next((name for name, number in reversed(LEVELS.items()) if record.levelno >= number), "debug")
        self._number += 1
        place = f"{record.filename}:{record.lineno}"
        self._lines.append(LogLine(self._number, record.created, level, place, encodable(text[:MAX_LINE])))

    def read(self, after: int = 0, level: str = "debug") -> Sequence[LogLine]:
        """Return the lines after the one of this number, of this level and above, oldest first."""
        least = LEVELS[level]
        return [line for line in list(self._lines) if line.number > after and LEVELS[line.level] >= least]
