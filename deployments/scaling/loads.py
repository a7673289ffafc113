"""Combines the reports of a version's replicas into one sample of its load."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from deployments.scaling.policy import Sample
from deployments.spec import ReplicaLoad

_RESERVED: Final = 0.05
"""Share of the free memory of a node, or of a GPU, that no replica may take.

Ray ends processes of a node that has none left.
"""

Reports = Mapping[Any, ReplicaLoad]
"""The reports of replicas, each by its channel: a replica that was lost and found starts over."""


def sample(before: Reports, now: Reports, running: int, nodes: int) -> Sample:
    """Return the load between two readings; of replicas that are in one only, what it tells.

    Args:
        before: the reading before.
        now: this one.
        running: replicas that serve, of which some may not have answered in time.
        nodes: nodes of the cluster.
    """
    executing = waiting = 0.0
    waits: Counter[int] = Counter()
    compared = [(before[key], report) for key, report in now.items() if key in before]
    for old, new in compared:
        passed_ns = max(new.at_ns - old.at_ns, 1)
        per_place = _rows_per_request(old, new) / new.places
        executing += (new.executing_ns - old.executing_ns) / passed_ns * per_place
        waiting += (new.waiting_ns - old.waiting_ns) / passed_ns * per_place
        waits += Counter(new.waits) - Counter(old.waits)
    unseen = running / len(compared) if compared else 1.0
    return Sample(
        running,
        executing * unseen,
        waiting * unseen,
        waits,
        max((report.oldest_ns for report in now.values()), default=0) / 1e6,
        _active(before, now),
        any(report.sequences for report in now.values()),
        _room(now, nodes),
    )


def _rows_per_request(old: ReplicaLoad, new: ReplicaLoad) -> float:
    """Return how many places a request takes."""
    executed = new.executed - old.executed
    return max((new.rows - old.rows) / executed, 1.0) if new.batches and executed else 1.0


def _active(before: Reports, now: Reports) -> bool:
    return any(
        report.in_flight or report.arrived > (before[key].arrived if key in before else 0)
        for key, report in now.items()
    )


def _room(now: Reports, nodes: int) -> int | None:
    """Return how many more replicas fit into memory; None where a node has none of them to tell."""
    by_node = {report.node: report for report in now.values()}
    largest = max((report.memory_bytes for report in now.values()), default=0)
    if not largest or len(by_node) < nodes:
        return None
    on_gpus = Counter[int]()  # by GPU, whose numbers mean the same instances on every node
    for report in now.values():
        on_gpus |= Counter({number: gpu.used for number, gpu in report.gpus.items()})
    return sum(_fitting(report, largest, on_gpus) for report in by_node.values())


def _fitting(there: ReplicaLoad, memory_bytes: int, on_gpus: Mapping[int, int]) -> int:
    """Return how many replicas of this size fit on a node; a further one uses the GPUs of those there."""
    needs = [(there.free_bytes, memory_bytes)]
    needs += [(gpu.free, on_gpus[number]) for number, gpu in there.gpus.items()]
    return min(max(0, int((1 - _RESERVED) * free) // needed) for free, needed in needs)
