"""Log lines as tritonserver writes them: `I0102 03:04:05.678901 1234 file.py:12] "message"`, in UTC."""

import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, Self

import msgspec

from app.core.errors import encodable, shortened
from app.core.installed.own_modules import PREFIX
from app.core.installed.private_packages import NAMES

PACKAGES = tuple(PREFIX + name for name in NAMES)
VERBATIM: Final[Mapping[str, object]] = {"verbatim": True}
"""`extra` of a record whose message is not escaped: our own tables, and JSON."""
_CONTROLS: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Escapes of characters that JSON does not escape, and that some terminals and viewers interpret."""
LOG_FORMATS: Final = ("default", "ISO8601")


class LogConfig(msgspec.Struct, frozen=True):
    """Settings of the log, named as in Triton's logging extension.

    `log_file` is "" for the console: information to stdout, the rest to stderr.
    """

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"

    def changed(self, change: Mapping[str, Any]) -> Self:
        """Return this configuration with the settings of `change`, whose values have the right types."""
        return msgspec.structs.replace(self, **change)


class TritonFormatter(logging.Formatter):
    """Formats a record as one line; the message is a JSON string, so that no client can forge a line.

    As in Triton, `TRITON_SERVER_ESCAPE_LOG_MESSAGES=0` in the environment turns escaping off.
    """

    def __init__(self, iso8601: bool = False) -> None:
        super().__init__()
        self._iso8601 = iso8601
        self._escape = os.environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "1") != "0"

    def format(self, record: logging.LogRecord) -> str:
        letter = record.levelname[0] if record.levelno >= logging.INFO else "I"  # as Triton's verbose lines
        at = time.gmtime(record.created)
        place = f"{os.getpid()} {record.filename}:{record.lineno}]"
        message, ours = record.getMessage(), getattr(record, "verbatim", False)
        message = encodable(message) if ours else shortened(message)
        if self._escape and not ours:
            message = json.dumps(message, ensure_ascii=False).translate(_CONTROLS)
        if record.exc_info:
            message += "\n" + encodable(self.formatException(record.exc_info))
        if self._iso8601:
            return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', at)} {letter} {place} {message}"
        micros = int(record.created % 1 * 1e6)
        return f"{letter}{time.strftime('%m%d %H:%M:%S', at)}.{micros:06d} {place} {message}"


class _Console(logging.StreamHandler[Any]):
    """Writes information to the current stdout, and warnings and errors to the current stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr if record.levelno > logging.INFO else sys.stdout)
        super().emit(record)


_receiver: logging.Handler | None = None
"""What gets every record of this process in place of the file or the console."""


def receive_records(handler: logging.Handler | None) -> None:
    """Have a handler get the records of our packages; None is the file or the console again.

    It counts from the next call of `configure_logging`, and for those after it.
    """
    global _receiver
    _receiver = handler


_recent: logging.Handler | None = None
"""Gets every record that is logged, too."""


def keep_recent(handler: logging.Handler) -> None:
    """Have a handler get what is logged as well, from now on; one that was given before gets nothing more."""
    global _recent
    replaced, _recent = _recent, handler
    handler.setFormatter(TritonFormatter())
    for package in PACKAGES:
        others = [each for each in logging.getLogger(package).handlers if each is not replaced]
        if others:  # else Python prints warnings, which it does for loggers without a handler alone
            handler.filters = others[0].filters
            logging.getLogger(package).handlers = [*others, handler]


def configure_logging(config: LogConfig) -> None:
    """Send the records of our packages where `config` says, in Triton's format; may be called again."""
    handler = _receiver or _open(config.log_file)
    handler.setFormatter(TritonFormatter(config.log_format == "ISO8601"))
    handlers = [handler] if _recent is None else [handler, _recent]
    for each in handlers:
        each.filters = [lambda record: _wanted(config, record)]
    for package in PACKAGES:
        package_logger = logging.getLogger(package)
        replaced, package_logger.handlers = package_logger.handlers, handlers.copy()
        for old in replaced:
            if old is not _recent:
                old.close()
        package_logger.propagate = False
        package_logger.setLevel(logging.DEBUG if config.log_verbose_level else logging.INFO)


def _open(path: str) -> logging.Handler:
    if not path:
        return _Console()
    try:
        return logging.handlers.WatchedFileHandler(
            path, encoding="utf-8"
        )  # several processes append, each whole lines
    except OSError as error:
        print(f"cannot open the log file: {error}; logging to the console", file=sys.stderr)
        return _Console()


def _wanted(config: LogConfig, record: logging.LogRecord) -> bool:
    if record.levelno >= logging.ERROR:
        return config.log_error
    if record.levelno >= logging.WARNING:
        return config.log_warning
    return config.log_info or record.levelno < logging.INFO
