"""The metric families of one ingress process: what it is, its connections and clients."""

import os
import platform
import resource
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from app.access.grants import Outcomes
from app.core.cost.reports import CostAnswer
from app.core.installed.installation import server_version
from app.core.observability.generation import Generated, Operation
from app.core.observability.metrics_config import MetricsConfig
from app.core.residency import ResidencyReport
from app.ingress.metrics.cost_families import cost_families
from app.ingress.metrics.drift_families import ADMISSION, DRIFT, DriftReading
from app.ingress.metrics.family import Family, Labels, S, gauge, read_families, value
from app.ingress.metrics.generation_families import GENERATION
from app.ingress.metrics.residency_families import RESIDENCY, WAITING
from app.ingress.metrics.tape_families import TAPE, TapeReading
from app.ingress.net.slow_clients import SendBufferLimit
from app.routing.waiting_room import WaitingCounts

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class FrontReading(NamedTuple):
    """Connections of a front: open now, and refused since the start."""

    connections: int
    refusals: int


class IngressReading(NamedTuple):
    """This process.

    Attributes:
        send_buffers: what it buffers for slow clients.
        fronts: its fronts by name.
        certificates: when those in use expire, in seconds since the epoch, by name of the front.
        tokens: outcomes by name of token; None without `--auth-tokens-file`.
        waiting: what waits for a replica.
        residency: the manager's figures of models on demand; None where all are loaded.
        generation: figures of texts; None where OpenAI's API is not served.
        tape: what is recorded; None without `--tape`.
        drift: of models that are watched.
        cost: of the server; None without an account.
    """

    send_buffers: SendBufferLimit
    fronts: Mapping[str, FrontReading] = {}
    certificates: Mapping[str, float] = {}
    tokens: Mapping[str, Outcomes] | None = None
    waiting: WaitingCounts = WaitingCounts()
    residency: ResidencyReport | None = None
    generation: Mapping[Operation, Generated] | None = None
    tape: TapeReading | None = None
    drift: DriftReading = DriftReading()
    cost: CostAnswer | None = None


def _by_outcome(name: str, labels: Labels, source: Outcomes) -> Iterator[Sample]:
    """Make a sample for each outcome."""
    for outcome, count in msgspec.structs.asdict(source).items():
        yield Sample(name, {"outcome": outcome, **labels}, count)


def _build(name: str, labels: Labels, source: None) -> Iterator[Sample]:
    versions = {"python": platform.python_version(), "ray": _ray(), "version": server_version()}
    yield Sample(name, {**labels, **versions}, 1)


def _ray() -> str:
    """Return the version of Ray; "" where it is not installed, as with models in one process."""
    try:
        return version("ray")
    except PackageNotFoundError:
        return ""


BUILD: Final[tuple[Family[None], ...]] = (
    Family(
        "nereid_build_info",
        "gauge",
        "The versions of this server, of Ray and of Python, as labels; always 1",
        _build,
    ),
)
PROCESS: Final[tuple[Family[None], ...]] = (
    Family(
        "process_cpu_seconds_total",
        "counter",
        "Processor time of this ingress process in seconds",
        value(lambda _: time.process_time()),
    ),
    gauge(
        "process_resident_memory_bytes",
        "Resident memory of this ingress process in bytes",
        lambda _: int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE,
    ),
    gauge(
        "process_open_fds",
        "File descriptors that this ingress process has open",
        lambda _: len(os.listdir("/proc/self/fd")),
    ),
    gauge(
        "process_max_fds",
        "File descriptors that this ingress process may open",
        lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    ),
)
"""Named as Prometheus' own client libraries name them."""
SLOW_CLIENTS: Final[tuple[Family[SendBufferLimit], ...]] = (
    gauge(
        "nereid_unsent_bytes",
        "Response bytes buffered for slow clients of this ingress replica",
        lambda limit: limit.measure(),
    ),
    Family(
        "nereid_slow_client_ended",
        "counter",
        "Connections and streams closed because the limit on buffered response bytes was reached",
        value(lambda limit: limit.evicted),
    ),
    Family(
        "nereid_slow_client_timeouts",
        "counter",
        "Connections and calls ended because their clients send requests or read responses below the minimum "
        "rate",
        value(lambda limit: limit.too_slow),
    ),
)
FRONTS: Final[tuple[Family[FrontReading], ...]] = (
    gauge("nereid_connections", "Open connections of clients", lambda front: front.connections),
    Family(
        "nereid_connections_refused",
        "counter",
        "Connections refused because of --max-connections",
        value(lambda front: front.refusals),
    ),
)
CERTIFICATES: Final[tuple[Family[float], ...]] = (
    gauge(
        "nereid_certificate_expiry_timestamp_seconds",
        "When the certificate in use expires, in seconds since the epoch",
        lambda expires_at: expires_at,
    ),
)
CALLERS: Final[tuple[Family[Outcomes], ...]] = (
    Family(
        "nereid_token_requests",
        "counter",
        "Requests of a token by outcome: ok, denied, limited; of this ingress replica",
        _by_outcome,
    ),
)


def ingress_families(reading: IngressReading, config: MetricsConfig) -> Iterator[Metric]:
    """Read the families of this process."""
    yield from read_families((*BUILD, *PROCESS), [({}, None)], config)
    yield from read_families(SLOW_CLIENTS, [({}, reading.send_buffers)], config)
    yield from read_families(FRONTS, _labelled("front", reading.fronts), config)
    if reading.certificates:
        yield from read_families(CERTIFICATES, _labelled("front", reading.certificates), config)
    yield from read_families(WAITING, [({}, reading.waiting)], config)
    if reading.residency is not None:
        yield from read_families(RESIDENCY, [({}, reading.residency)], config)
    if reading.generation is not None:
        figures = [(operation._asdict(), found) for operation, found in reading.generation.items()]
        yield from read_families(GENERATION, figures, config)
    if reading.tape is not None:
        yield from read_families(TAPE, [({}, reading.tape)], config)
    yield from read_families(DRIFT, reading.drift.labelled, config)
    yield from read_families(ADMISSION, reading.drift.found, config)
    yield from cost_families(reading.cost, config)
    if reading.tokens is not None:
        yield from read_families(CALLERS, _labelled("token", reading.tokens), config)


def _labelled(label: str, sources: Mapping[str, S]) -> list[tuple[Labels, S]]:
    return [({label: name}, source) for name, source in sources.items()]
