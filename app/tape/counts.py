"""What is known of the tape of this process: rows written and dropped."""

from typing import Final

import msgspec

RATE_LIMIT: Final = "rate_limit"
"""More bytes a second than `--tape-rate-limit`."""
QUEUE: Final = "queue"
"""More rows wait for the disk than memory is kept for."""
DISK: Final = "disk"
"""The disk refuses them: it is full, or the directory cannot be used."""
SPACE: Final = "space"
"""Little of the disk is free."""
FAULT: Final = "fault"
"""They could not be made: an error of this program, or of a model's surroundings."""
SEQUENCE: Final = "sequence"
"""An earlier row of their sequence was dropped."""
REASONS: Final = (RATE_LIMIT, QUEUE, DISK, SPACE, SEQUENCE, FAULT)


class TapeCounts(msgspec.Struct):
    """Counts since the start. Two threads write, each its own fields; any may read.

    Attributes:
        rows: rows written.
        nbytes: bytes written.
        refused: rows that were never queued, by reason; written by the event loop.
        lost: rows that were queued and not written, by reason; written by the writer.
    """

    rows: int = 0
    nbytes: int = 0
    refused: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    lost: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    @property
    def dropped(self) -> dict[str, int]:
        """Rows that were dropped, by reason."""
        return {reason: self.refused[reason] + self.lost[reason] for reason in REASONS}
