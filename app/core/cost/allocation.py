"""What is kept for versions, whether they use it or not: the allocation of OpenCost's specification. Pure.

A version's allocation in an hour is the greater of what is reserved for it and what it has used. Its clients
share it in the proportion of their use; without any it is the version's own. What no version and no process
of the server has is not allocated: all of it together is the node.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from app.core.cost.rows import LedgerRow

UNALLOCATED: Final = "(not allocated)"
"""The model of a node's idle row."""
_RESOURCES: Final = (
    ("cpu_seconds", "reserved_core_seconds", "node_core_seconds"),
    ("memory_gib_seconds", "reserved_gib_seconds", "node_gib_seconds"),
)
_Version = tuple[str, str, str, str]


def allocated(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the rows of one hour with what is allocated in the place of what was used.

    A node whose size is known has one idle row more, `UNALLOCATED`, which is negative if more is reserved
    than there is.
    """
    versions = defaultdict[_Version, list[LedgerRow]](list)
    found = list[LedgerRow]()
    for row in rows:
        if row.kind in ("usage", "idle"):
            versions[row.hour, row.node, row.model, row.version].append(row)
        else:
            found.append(row)
    for group in versions.values():
        found += _shared(group)
    return [*found, *_unallocated(found)]


def _shared(group: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the rows of a version with their shares of its allocation."""
    shares = _shares(group)
    for used, reserved, _ in _RESOURCES:
        total = max(sum(getattr(row, used) for row in group), sum(getattr(row, reserved) for row in group))
        group = [
            msgspec.structs.replace(row, **{used: total * share})
            for row, share in zip(group, shares, strict=True)
        ]
    return list(group)


def _shares(group: Sequence[LedgerRow]) -> list[float]:
    """Return the shares of a version's clients, by processor time; of the version itself if it had none."""
    for kind, weight in (("usage", "cpu_seconds"), ("usage", "requests"), ("idle", "")):
        weights = [
            (float(getattr(row, weight)) if weight else 1.0) if row.kind == kind else 0.0 for row in group
        ]
        if total := sum(weights):
            return [each / total for each in weights]
    return [1.0 / len(group)] * len(group)


def _unallocated(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    nodes = defaultdict[tuple[str, str], list[LedgerRow]](list)
    for row in rows:
        nodes[row.hour, row.node].append(row)
    found = []
    for (hour, node), group in nodes.items():
        left = {}
        for used, _, capacity in _RESOURCES:
            given = sum(getattr(row, used) for row in group if row.kind != "measured")
            left[used] = sum(getattr(row, capacity) for row in group) - given
        if any(getattr(row, capacity) for row in group for *_, capacity in _RESOURCES):
            found.append(LedgerRow(hour, "idle", node, UNALLOCATED, **left))
    return found
