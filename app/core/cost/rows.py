"""Rows of the cost ledger: what was consumed, by hour, node, version of a model and client. Pure.

Rows are additive: all rows of one key together are what happened.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

Kind = Literal["usage", "idle", "overhead", "measured"]
"""Requests; a loaded version without requests; processes that are no model's; all processes, as measured."""

OTHER: Final = "other"
"""The client, or the model, of rows that have no row of their own any more."""
MAX_ROWS: Final = 1000
"""Rows of an hour with a client or a model of their own."""
HOUR_S: Final = 3600
_HOUR: Final = "%Y-%m-%dT%H:00:00Z"

Key = tuple[str, Kind, str, str, str, str, str]
"""Hour, kind, node, model, version, token and kind of GPU."""


class LedgerRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was consumed; the fields up to `gpu` are its key.

    Attributes:
        hour: its beginning, UTC, as `2026-11-26T21:00:00Z`.
        kind: see `Kind`.
        node: of the cluster.
        model, version: of `usage` and `idle`; of `overhead`, `model` is the kind of process.
        token: name of the client's token; "" for nobody named, `OTHER` for one without a row of its own.
        gpu: name of the kind of GPU; "" without one.
        cpu_seconds: consumed.
        memory_gib_seconds: held.
        reserved_core_seconds, reserved_gib_seconds: kept for it, whether used or not.
        requests, rows, bytes_in, bytes_out: of clients.
        gpu_seconds, gpu_gib_seconds: consumed and held of GPUs.
        energy_joules: consumed; None if it is not known.
        node_core_seconds, node_gib_seconds: of `measured`: what the node has, times the time.
    """

    hour: str
    kind: Kind
    node: str
    model: str = ""
    version: str = ""
    token: str = ""
    gpu: str = ""
    cpu_seconds: float = 0.0
    memory_gib_seconds: float = 0.0
    reserved_core_seconds: float = 0.0
    reserved_gib_seconds: float = 0.0
    requests: int = 0
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    gpu_seconds: float = 0.0
    gpu_gib_seconds: float = 0.0
    energy_joules: float | None = 0.0
    node_core_seconds: float = 0.0
    node_gib_seconds: float = 0.0

    @property
    def key(self) -> Key:
        """Rows of the same key are one."""
        return self.hour, self.kind, self.node, self.model, self.version, self.token, self.gpu

    def plus(self, other: "LedgerRow") -> "LedgerRow":
        """Return the row of this one's key with the figures of both; an unknown energy stays unknown."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _FIGURES}
        known = None not in (energies := (self.energy_joules, other.energy_joules))
        energy = sum(filter(None, energies)) if known else None
        return msgspec.structs.replace(self, **sums, energy_joules=energy)


_FIGURES: Final = tuple(
    name
    for name in LedgerRow.__struct_fields__[LedgerRow.__struct_fields__.index("cpu_seconds") :]
    if name != "energy_joules"
)


def hour_of(at: float) -> str:
    """Return the hour of a moment (Unix seconds)."""
    return datetime.fromtimestamp(at, UTC).strftime(_HOUR)


def began_at(hour: str) -> float:
    """Return when an hour begins, Unix seconds.

    Raises:
        ValueError: it is no hour.
    """
    return datetime.strptime(hour, _HOUR).replace(tzinfo=UTC).timestamp()


def summed(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Return one row for each key, in the order in which keys first came."""
    sums: dict[Key, LedgerRow] = {}
    for row in rows:
        known = sums.get(row.key)
        sums[row.key] = row if known is None else known.plus(row)
    return [*sums.values()]


class HourBound:
    """Bounds the keys of an hour: clients that come late share a row, and so do models if there are many.

    Args:
        rows: that were there before.
        most: keys with a client and a model of their own, and again as many with a model alone.
    """

    def __init__(self, rows: Iterable[LedgerRow] = (), most: int = MAX_ROWS) -> None:
        self._most = most
        self._keys = {row.key for row in rows}

    def __len__(self) -> int:
        return len(self._keys)

    def fitted(self, row: LedgerRow) -> LedgerRow:
        """Return the row, or one of a key that there still is place for."""
        shared = msgspec.structs.replace(row, token=OTHER if row.token else "")
        for fit, most in ((row, self._most), (shared, 2 * self._most)):
            if fit.key in self._keys or len(self._keys) < most:
                self._keys.add(fit.key)
                return fit
        return msgspec.structs.replace(shared, model=OTHER, version="", gpu="")
