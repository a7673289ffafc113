"""Whether what the ledger gives to somebody is what was measured. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from app.core.cost.rows import LedgerRow

_PARTS: Final[Mapping[str, str]] = {
    "usage": "attributed",
    "idle": "idle",
    "overhead": "overhead",
    "measured": "measured",
}


class Reconciliation(msgspec.Struct, frozen=True):
    """Processor seconds of a node, or of all of them.

    Attributes:
        attributed: to requests.
        idle: of loaded versions without requests.
        overhead: of processes that are no model's.
        measured: of all processes together, by the node's own counters.
    """

    attributed: float = 0.0
    idle: float = 0.0
    overhead: float = 0.0
    measured: float = 0.0

    @property
    def told(self) -> float:
        """What the ledger gives to somebody."""
        return self.attributed + self.idle + self.overhead

    @property
    def difference(self) -> float | None:
        """How much more was told than measured, as a share of what was measured; None if nothing was."""
        return self.told / self.measured - 1 if self.measured else None

    def plus(self, row: LedgerRow) -> "Reconciliation":
        """Return it with a row."""
        part = _PARTS[row.kind]
        return msgspec.structs.replace(self, **{part: getattr(self, part) + row.cpu_seconds})


def reconciled(rows: Iterable[LedgerRow]) -> dict[str, Reconciliation]:
    """Return a reconciliation for each node."""
    nodes: dict[str, Reconciliation] = {}
    for row in rows:
        nodes[row.node] = nodes.get(row.node, Reconciliation()).plus(row)
    return nodes


def together(parts: Iterable[Reconciliation]) -> Reconciliation:
    """Return the reconciliation of several nodes."""
    sums = [0.0] * len(Reconciliation.__struct_fields__)
    for part in parts:
        sums = [one + other for one, other in zip(sums, msgspec.structs.astuple(part), strict=True)]
    return Reconciliation(*sums)
