"""Counters of replicas, read over their channels and added up."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import InferError
from app.routing.table import VersionEntry
from app.transport.channel.client import Channel

logger = logging.getLogger(__name__)

_ANSWER_S = 3.0
"""A replica that hangs must not take `/metrics` of all others past the scraper's patience (10 s)."""


class ReplicaStatistics(msgspec.Struct):
    """One replica's counters, or the sum over several; `custom` are families of Python models, unmerged."""

    statistics: pb.ModelStatistics
    failures: dict[str, int]
    pending: int = 0
    releases: dict[str, int] = {}
    queue_age_ns: int = 0
    summaries: dict[str, tuple[int, int, dict[int, int]]] = {}
    first_response: tuple[tuple[float, ...], list[int], float] | None = None
    custom: list[Any] = []
    cached: bool = False
    """Whether it has a response cache."""


async def collect(entry: VersionEntry, channels: Iterable[Channel]) -> list[ReplicaStatistics]:
    """Ask each replica; one that is going away meanwhile is left out."""
    found = [_empty(entry)]
    for answer in await _ask(channels, "statistics"):
        message = pb.ModelStatistics.FromString(answer["statistics"])
        found.append(
            ReplicaStatistics(
                message,
                dict(answer["failures"]),
                answer["pending"],
                dict(answer.get("releases", {})),
                answer.get("queue_age_ns", 0),
                answer.get("summaries", {}),
                answer.get("first_response"),
                answer.get("custom", []),
                answer.get("cached", False),
            )
        )
    return found


async def collect_ensembles(
    channels: Iterable[Channel],
) -> dict[tuple[str, int], list[ReplicaStatistics]]:
    """Ask ingresses, and replicas whose models call ensembles, for the ensembles that they ran."""
    found: dict[tuple[str, int], list[ReplicaStatistics]] = {}
    for answer in await _ask(channels, "ensembles"):
        for name, version, message, failures, distributions in answer:
            part = ReplicaStatistics(pb.ModelStatistics.FromString(message), failures, **distributions)
            found.setdefault((name, version), []).append(part)
    return found


async def _ask(channels: Iterable[Channel], verb: str) -> list[Any]:
    answers = await asyncio.gather(
        *(channel.control(verb, None, _ANSWER_S) for channel in channels), return_exceptions=True
    )
    given = []
    for answer in answers:
        if isinstance(answer, (InferError, OSError, TimeoutError)):
            logger.debug("no %s from a replica: %s", verb, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            given.append(answer)
    return given


def merge(parts: Iterable[ReplicaStatistics]) -> ReplicaStatistics:
    """Add up the replicas of one model version."""
    total: ReplicaStatistics | None = None
    for part in parts:
        if total is None:
            message = pb.ModelStatistics()
            message.CopyFrom(part.statistics)
            total = ReplicaStatistics(
                message,
                dict(part.failures),
                part.pending,
                dict(part.releases),
                part.queue_age_ns,
                part.summaries,
                part.first_response,
                part.custom,
                part.cached,
            )
        else:
            _add(total, part)
    assert total is not None, "no replica statistics to merge. This is a bug."
    total.statistics.batch_stats.sort(key=lambda batch: batch.batch_size)
    return total


def _empty(entry: VersionEntry) -> ReplicaStatistics:
    return ReplicaStatistics(pb.ModelStatistics(name=entry.model, version=str(entry.version)), {})


def _add(total: ReplicaStatistics, part: ReplicaStatistics) -> None:
    target, source = total.statistics, part.statistics
    total.custom = total.custom + part.custom
    total.cached = total.cached or part.cached
    target.last_inference = max(target.last_inference, source.last_inference)
    target.inference_count += source.inference_count
    target.execution_count += source.execution_count
    for field in pb.InferStatistics.DESCRIPTOR.fields:
        _add_duration(
            getattr(target.inference_stats, field.name), getattr(source.inference_stats, field.name)
        )
    _add_batches(target, source)
    total.pending += part.pending
    for reason, count in part.failures.items():
        total.failures[reason] = total.failures.get(reason, 0) + count
    for reason, count in part.releases.items():
        total.releases[reason] = total.releases.get(reason, 0) + count
    total.queue_age_ns = max(total.queue_age_ns, part.queue_age_ns)
    _add_distributions(total, part)


def _add_distributions(total: ReplicaStatistics, part: ReplicaStatistics) -> None:
    for name, (count, us, sizes) in part.summaries.items():
        known_count, known_us, known = total.summaries.get(name, (0, 0, {}))
        sum_of = Counter(known) + Counter(sizes)
        total.summaries = {**total.summaries, name: (known_count + count, known_us + us, dict(sum_of))}
    if total.first_response is None or part.first_response is None:
        total.first_response = total.first_response or part.first_response
        return
    (bounds, counts, ms), (_, more, more_ms) = total.first_response, part.first_response
    summed = [a + b for a, b in zip(counts, more, strict=True)]
    total.first_response = (bounds, summed, ms + more_ms)


def _add_duration(target: pb.StatisticDuration, source: pb.StatisticDuration) -> None:
    target.count += source.count
    target.ns += source.ns


def _add_batches(target: pb.ModelStatistics, source: pb.ModelStatistics) -> None:
    by_size = {batch.batch_size: batch for batch in target.batch_stats}
    for batch in source.batch_stats:
        known = by_size.get(batch.batch_size)
        if known is None:
            target.batch_stats.add().CopyFrom(batch)
            continue
        for name in ("compute_input", "compute_infer", "compute_output"):
            _add_duration(getattr(known, name), getattr(batch, name))
