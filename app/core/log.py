"""Log lines as tritonserver writes them: `I0102 03:04:05.678901 1234 file.py:12] "message"`, in UTC."""

import json
import logging
import os
import sys
import time
from typing import Protocol

PACKAGES = ("app", "deployments", "backends")


class LogSettings(Protocol):
    """The settings that concern logging."""

    @property
    def log_verbose(self) -> int: ...

    @property
    def log_info(self) -> bool: ...

    @property
    def log_warning(self) -> bool: ...

    @property
    def log_error(self) -> bool: ...

    @property
    def log_format(self) -> str: ...


class TritonFormatter(logging.Formatter):
    """One line a record; the message is a JSON string, so nothing a client sent can forge a line."""

    def __init__(self, iso8601: bool = False) -> None:
        super().__init__()
        self._iso8601 = iso8601

    def format(self, record: logging.LogRecord) -> str:
        letter = record.levelname[0]
        at = time.gmtime(record.created)
        place = f"{os.getpid()} {record.filename}:{record.lineno}]"
        message = record.getMessage()
        if "\n" not in message or not message.startswith("\n+"):  # our own tables stay readable
            message = json.dumps(message, ensure_ascii=False)
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        if self._iso8601:
            return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', at)} {letter} {place} {message}"
        micros = int(record.created % 1 * 1e6)
        return f"{letter}{time.strftime('%m%d %H:%M:%S', at)}.{micros:06d} {place} {message}"


def configure_logging(settings: LogSettings) -> None:
    """Send the records of our packages to stderr in Triton's format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TritonFormatter(settings.log_format.upper() == "ISO8601"))
    handler.addFilter(lambda record: _wanted(settings, record))
    for package in PACKAGES:
        package_logger = logging.getLogger(package)
        package_logger.handlers = [handler]
        package_logger.propagate = False
        package_logger.setLevel(logging.DEBUG if settings.log_verbose else logging.INFO)


def _wanted(settings: LogSettings, record: logging.LogRecord) -> bool:
    if record.levelno >= logging.ERROR:
        return settings.log_error
    if record.levelno >= logging.WARNING:
        return settings.log_warning
    return settings.log_info or record.levelno < logging.INFO
