"""Reads the reports of replicas over their channels, and writes them as messages of Triton's protocol."""

from collections.abc import Iterable
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from app.core.observability.statistics import (
    BatchDurations,
    Duration,
    EnsembleReports,
    ReplicaReport,
    ResponseDurations,
)
from app.routing.table import VersionEntry
from app.transport.channel.client import Channel
from app.transport.channel.survey import ask

ANSWER_S = 3.0
"""A replica that hangs must not delay `/metrics` of all others past the scraper's timeout (10 s)."""


async def collect(channels: Iterable[Channel]) -> list[ReplicaReport]:
    """Ask each replica of a model version; one that fails or does not answer in time is left out."""
    return [report for _, report in await ask(channels, "statistics", ReplicaReport, ANSWER_S)]


async def collect_ensembles(channels: Iterable[Channel]) -> dict[tuple[str, int], list[ReplicaReport]]:
    """Ask ingresses, and replicas whose models call ensembles, for the ensembles that they ran.

    Returns:
        Reports by name and version.
    """
    found: dict[tuple[str, int], list[ReplicaReport]] = {}
    for _, reports in await ask(channels, "ensembles", EnsembleReports, ANSWER_S):
        for name, version, report in reports:
            found.setdefault((name, version), []).append(report)
    return found


def statistics_message(entry: VersionEntry, report: ReplicaReport) -> pb.ModelStatistics:
    """Write a report as a message of the statistics extension."""
    message = pb.ModelStatistics(
        name=entry.model,
        version=str(entry.version),
        last_inference=report.last_inference_ns // 1_000_000,
        inference_count=report.inference_count,
        execution_count=report.execution_count,
    )
    for field in pb.InferStatistics.DESCRIPTOR.fields:
        _set(getattr(message.inference_stats, field.name), getattr(report, field.name))
    for size, durations in sorted(report.batches.items()):
        _set_all(message.batch_stats.add(batch_size=size), durations)
    for number, times in sorted(report.responses.items()):
        _set_all(message.response_stats[str(number)], times)
    return message


def _set_all(message: Any, durations: BatchDurations | ResponseDurations) -> None:
    for name in durations.__struct_fields__:
        _set(getattr(message, name), getattr(durations, name))


def _set(message: pb.StatisticDuration, duration: Duration) -> None:
    message.count, message.ns = duration.count, duration.ns
