"""Records of rollouts as they are stored: a restarted manager or server goes on where the one before was."""

from typing import Final

import msgspec

from app.core.encoding import to_json
from app.core.rollout.outcomes import Outcomes
from app.core.rollout.status import Verdict
from app.core.rollout.tape_evidence import TapeEvidence
from deployments.rollout.judging.intervals import UNSEEN
from deployments.rollout.states import machine
from deployments.rollout.states.record import Record
from deployments.rollout.storage.documents import Documents, Storage

MAX_BYTES: Final = 4096
"""Bytes of a stored record but for rejected versions; the oldest events go first."""
_WORST: Final = 5
"""Rows of a tape that are kept."""


def encoded(record: Record) -> bytes:
    """Return a record as JSON, without what is measured anew and with as many events as have room."""
    status = record.status
    kept = machine.with_status(
        msgspec.structs.replace(record, intervals=UNSEEN),
        verdict=Verdict(),
        outcomes=_counts(status.outcomes),
        total=_counts(status.total),
        tape=_tape(status.tape),
    )
    room = MAX_BYTES + len(to_json(kept.barred))
    for first in range(len(status.history) + 1):
        text = to_json(machine.with_status(kept, history=status.history[first:]))
        if len(text) <= room:
            break
    return text


def _tape(tape: TapeEvidence | None) -> TapeEvidence | None:
    return tape and msgspec.structs.replace(tape, worst=tape.worst[:_WORST])


def _counts(outcomes: Outcomes) -> Outcomes:
    """Return outcomes without what makes most of the bytes: durations, reasons of the stable version."""
    stable = msgspec.structs.replace(outcomes.stable, latencies={}, executions={}, reasons={}, classes={})
    candidate = msgspec.structs.replace(outcomes.candidate, latencies={}, executions={}, classes={})
    return Outcomes(stable, candidate, outcomes.mirror)


def decoded(text: bytes) -> Record:
    """Return the record of its JSON.

    Raises:
        msgspec.MsgspecError: another version wrote it.
    """
    return msgspec.json.decode(text, type=Record)


class Records:
    """Writes and reads records; a store that does not answer is logged, and no failure.

    Args:
        storage: where they are kept.
    """

    def __init__(self, storage: Storage) -> None:
        self._documents = Documents(storage, "rollout", Record, _is_over)

    async def write(self, record: Record) -> None:
        """Store a record."""
        text = encoded(record)
        await self._documents.write(record.name, text, text)

    async def read(self) -> dict[str, Record]:
        """Return the stored records, by model."""
        return await self._documents.read()


def _is_over(record: Record) -> bool:
    return not record.on
