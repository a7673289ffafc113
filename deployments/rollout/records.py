"""Records of rollouts in the cluster's store: a restarted manager goes on where the one before was."""

import logging
from typing import Final

import msgspec

from app.core.encoding import to_json
from app.core.rollout.outcomes import Outcomes
from app.core.rollout.status import Verdict
from deployments.rollout import machine
from deployments.rollout.intervals import UNSEEN
from deployments.rollout.machine import Record
from deployments.stored import Store, StoredValues

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 4096
"""Bytes of a stored record; the oldest events go first."""
_PREFIX: Final = "rollout/"


def encoded(record: Record) -> bytes:
    """Return a record as JSON, without what is measured anew and with as many events as have room."""
    status = record.status
    kept = machine.with_status(
        msgspec.structs.replace(record, intervals=UNSEEN),
        verdict=Verdict(),
        outcomes=_counts(status.outcomes),
        total=_counts(status.total),
    )
    for first in range(len(status.history) + 1):
        text = to_json(machine.with_status(kept, history=status.history[first:]))
        if len(text) <= MAX_BYTES:
            break
    return text


def _counts(outcomes: Outcomes) -> Outcomes:
    """Return outcomes without what makes most of the bytes: durations, reasons of the stable version."""
    stable = msgspec.structs.replace(outcomes.stable, latencies={}, executions={}, reasons={})
    candidate = msgspec.structs.replace(outcomes.candidate, latencies={}, executions={})
    return Outcomes(stable, candidate, outcomes.mirror)


def decoded(text: bytes) -> Record:
    """Return the record of its JSON.

    Raises:
        msgspec.MsgspecError: another version wrote it.
    """
    return msgspec.json.decode(text, type=Record)


class Records:
    """Writes and reads records; a store that does not answer is logged, and no failure."""

    def __init__(self, store: Store) -> None:
        self._values = StoredValues(store, _PREFIX)

    async def write(self, record: Record) -> None:
        """Store a record."""
        try:
            await self._values.write(record.name, encoded(record))
        except Exception as error:
            logger.warning("the %s goes on, but is not stored: %r", record.text, error)

    async def read(self) -> dict[str, Record]:
        """Return the stored records, by model."""
        try:
            stored = await self._values.read()
        except Exception as error:
            logger.warning("cannot read which rollouts were on: %r", error)
            return {}
        found = {}
        for name, text in stored.items():
            try:
                found[name] = decoded(text)
            except msgspec.MsgspecError as error:
                logger.warning("cannot read the stored rollout of '%s': %s", name, error)
        return found
