"""Records of rollouts in the cluster's store: a restarted manager goes on where the one before was."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from app.core.rollout.outcomes import Outcomes
from app.core.rollout.status import Verdict
from deployments.rollout import machine
from deployments.rollout.machine import Record

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 4096
"""Bytes of a stored record; the oldest events go first."""
_PREFIX: Final = "rollout/"
_STORE_S: Final = 5.0
"""Time for the store to answer: a rollout goes on without it."""


class Store(Protocol):
    """Values by key; every method blocks."""

    def read(self, key: str) -> bytes | None:
        """Return a value; None where there is none."""

    def write(self, key: str, value: bytes) -> None:
        """Set a value."""

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that begin with a prefix."""


def encoded(record: Record) -> bytes:
    """Return a record as JSON, without what is measured anew and with as many events as have room."""
    status = record.status
    kept = machine.with_status(
        record, verdict=Verdict(), outcomes=_counts(status.outcomes), total=_counts(status.total)
    )
    for first in range(len(status.history) + 1):
        text = msgspec.json.encode(machine.with_status(kept, history=status.history[first:]))
        if len(text) <= MAX_BYTES:
            break
    return text


def _counts(outcomes: Outcomes) -> Outcomes:
    """Return outcomes without the latencies, which are most of the bytes."""
    stable = msgspec.structs.replace(outcomes.stable, latencies={})
    candidate = msgspec.structs.replace(outcomes.candidate, latencies={})
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
        self._store = store

    async def write(self, record: Record) -> None:
        """Store a record."""
        try:
            async with asyncio.timeout(_STORE_S):
                await asyncio.to_thread(self._store.write, _PREFIX + record.name, encoded(record))
        except Exception as error:
            logger.warning("the %s goes on, but is not stored: %r", record.text, error)

    async def read(self) -> dict[str, Record]:
        """Return the stored records, by model."""
        try:
            async with asyncio.timeout(_STORE_S):
                stored = await asyncio.to_thread(self._read)
        except Exception as error:
            logger.warning("cannot read which rollouts were on: %r", error)
            return {}
        found = {}
        for key, text in stored.items():
            try:
                found[key.removeprefix(_PREFIX)] = decoded(text)
            except msgspec.MsgspecError as error:
                logger.warning("cannot read the stored %s: %s", key, error)
        return found

    def _read(self) -> dict[str, bytes]:
        values = {key: self._store.read(key) for key in self._store.keys(_PREFIX)}
        return {key: value for key, value in values.items() if value is not None}
