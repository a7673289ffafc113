"""The log of a server inside a program, as structured records."""

import logging
from collections.abc import Callable

from app.core.errors import encodable
from app.core.observability.log import receive_records
from nereid.inprocess.kinds import LogLevel

LogCallback = Callable[[LogLevel, str, int, int, str], None]
"""Receives level, file, line, microseconds of the epoch and message of a record, on the thread that logs."""


class _Handler(logging.Handler):
    def __init__(self, callback: LogCallback) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        place = (record.filename, record.lineno, int(record.created * 1e6))
        try:
            self._callback(_level(record.levelno), *place, encodable(message))
        except Exception:  # as in Triton: whoever logs must not fail for it
            pass


def _level(number: int) -> LogLevel:
    if number >= logging.ERROR:
        return LogLevel.ERROR
    if number >= logging.WARNING:
        return LogLevel.WARN
    return LogLevel.INFO if number >= logging.INFO else LogLevel.VERBOSE


def send_records(callback: LogCallback | None) -> None:
    """Send the log's records of this process to a function; None is the log's own place again."""
    receive_records(None if callback is None else _Handler(callback))
