"""Puts the tape of a process together."""

import logging
from collections.abc import Callable

from app.core.tape.switch import TapeSwitch
from app.settings.tape import TapeSettings
from app.tape.counts import TapeCounts
from app.tape.files import node_directory, read_key
from app.tape.queue import TapeQueue
from app.tape.recording import Recorder
from app.tape.tap import RequestTap
from app.tape.writer import Limits, TapeWriter, name_of_process

logger = logging.getLogger(__name__)


class Tape:
    """What records the requests of a process.

    Args:
        settings: of the tape, with a directory.
        secret: chooses sequences; the same in all ingresses of a server.
        token: returns the name of the client's token.

    Raises:
        OSError: the directory cannot be used.

    Attributes:
        tap: that of the router.
        counts: what was written and dropped.
        ingress: names this process in the rows.
        directory: of this node's files.
    """

    def __init__(self, settings: TapeSettings, secret: bytes, token: Callable[[], str]) -> None:
        self.counts, self.ingress = TapeCounts(), name_of_process()
        self._queue = TapeQueue(settings.bytes_per_s, self.counts, self.ingress)
        recorder = Recorder(self._queue, self.counts, secret, token)
        self.tap = RequestTap(recorder, TapeSwitch(settings.rate), read_key(settings.directory))
        limits = Limits(settings.max_bytes, settings.max_age_s)
        self._writer = TapeWriter(self._queue, self.counts, settings.directory, self.ingress, limits)
        self.directory = node_directory(settings.directory)
        self._writer.start()

    @property
    def lag_s(self) -> float:
        """Age of the row that has waited for longest for the disk, in seconds."""
        return self._queue.lag_s

    def close(self) -> None:
        """Write what waits, within some seconds."""
        self._writer.close()


def open_tape(
    settings: TapeSettings,
    secret: bytes,
    token: Callable[[], str] = str,
) -> Tape | None:
    """Start the tape of a process, as `Tape` does; None where its directory cannot be used."""
    try:
        return Tape(settings, secret, token)
    except OSError as error:
        logger.error("nothing is recorded: %s", error)
        return None
