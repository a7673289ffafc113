"""A line for each management call: who asked for what, from where, and what became of it."""

import logging
import os
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from app.core.encoding import to_json
from app.core.observability.log import VERBATIM

logger = logging.getLogger(__name__)

Outcome = Literal["ok", "failed", "cancelled", "denied"]
_CUT: Final = 300
"""Characters kept of a name or reason, which a client may choose."""


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A management call.

    Attributes:
        time: when it ended, in UTC.
        action: what was asked for, such as `load`.
        subject: the model or the memory region; "" for the whole server.
        who: name of the token, `anonymous` without one.
        peer: address and port of the client.
        protocol: "http" or "grpc".
        outcome: what became of it: `denied` if the client had no right to it.
        reason: text of the error.
    """

    time: str
    action: str
    subject: str = ""
    who: str
    peer: str
    protocol: str
    outcome: Outcome
    reason: str = ""


class Audit:
    """Writes the lines to a file, or to the server's log.

    Args:
        path: file of JSON lines; "" for the log.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path

    def write(
        self,
        *,
        protocol: str,
        who: str,
        peer: str,
        action: str,
        subject: str,
        outcome: Outcome,
        reason: str = "",
    ) -> None:
        """Write a line. A file that cannot be written is an error in the log, and no failure of the call."""
        line = AuditLine(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            action=action,
            subject=subject[:_CUT],
            who=who,
            peer=peer,
            protocol=protocol,
            outcome=outcome,
            reason=reason[:_CUT],
        )
        text = to_json(line)
        if not self._path:
            logger.info("audit %s", text.decode(), extra=VERBATIM)
            return
        try:
            append(self._path, text + b"\n")
        except OSError as error:
            logger.error("cannot write to the audit log '%s': %s; %s", self._path, error.strerror, line)


def append(path: str, data: bytes) -> None:
    """Append to a file that is its owner's alone, made if necessary.

    It is opened each time: so it may be moved away at any time, and several processes append whole lines.

    Raises:
        OSError: it cannot be written.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, data)
    finally:
        os.close(file)
