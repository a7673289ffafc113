"""What a client's small requests lose while another client sends large ones to the same server."""

from __future__ import annotations

import gzip
import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.load import NOTHING, Generator, Load, LoadResult, closed
from benchmarks.measure import Plan
from benchmarks.report import Rows, unique
from benchmarks.repository import STREAM
from benchmarks.servers import Server, frozen
from benchmarks.traffic import floats, numbers
from benchmarks.workloads import HEADER_LENGTH, Workload
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.job import Endpoint, Job

CONNECTIONS = 4
"""Of the small requests."""
RESPONSES, IDLE = 10_000, 1_000

Running = AbstractContextManager[Load | None]
Begin = Callable[[Server, Generator], Running]


@dataclass(frozen=True)
class Neighbour:
    """A load beside small requests.

    Attributes:
        model: what it asks.
        begin: runs it; None stands for one without requests.
    """

    name: str
    model: str
    begin: Begin

    @property
    def key(self) -> str:
        return f"beside {self.name}"


@dataclass(frozen=True)
class Beside:
    """A server's small requests alone, and beside a neighbour."""

    cell: str
    server: str
    round: int
    alone: LoadResult
    beside: LoadResult
    neighbour: LoadResult

    @property
    def kept(self) -> float:
        return self.beside.infer_per_s / self.alone.infer_per_s if self.alone.requests else 0.0

    @property
    def p99_ratio(self) -> float:
        return self.beside.p99_ms / self.alone.p99_ms if self.alone.requests else 0.0


def all_neighbours(repository: Path) -> list[Neighbour]:
    """Return the neighbours; those whose model `repository` lacks are left out."""
    random = np.random.default_rng(2)
    large, body = numbers(repository, random, 10_000), floats(repository, "600KB", 150_000)
    found = [] if large is None else [loading(large, n) for n in (1, 4)]
    if body is not None:
        body = replace(body, inputs={name: rounded(array) for name, array in body.inputs.items()})
        found += [loading(body, 2), Neighbour("compressed x2", body.model, job_of(body, gzipped, 2))]
    if (repository / STREAM).exists():
        found.append(Neighbour("stream x1", STREAM, streaming))
    return [*found, Neighbour(f"{IDLE} idle", "", idling)]


def rounded(array: np.ndarray) -> np.ndarray:
    """Return numbers that can be compressed by half."""
    return np.round(array, 1).astype(array.dtype)


def loading(workload: Workload, connections: int) -> Neighbour:
    def begin(server: Server, generator: Generator) -> Running:
        return generator.running(closed(workload, "http", server.port("http"), connections))

    return Neighbour(f"{workload.name} x{connections}", workload.model, begin)


def job_of(workload: Workload, payload: Callable[[Endpoint, Workload], bytes], connections: int) -> Begin:
    def begin(server: Server, generator: Generator) -> Running:
        endpoint = Endpoint("http", "127.0.0.1", server.port("http"), workload.path)
        return generator.running(Job(endpoint, (payload(endpoint, workload),), concurrency=connections))

    return begin


def gzipped(endpoint: Endpoint, workload: Workload) -> bytes:
    """Return a request with a compressed body."""
    body, length = workload.http_body()
    headers = {HEADER_LENGTH: str(length), "Content-Encoding": "gzip"}
    return http_request(endpoint, headers, gzip.compress(body, 6))


def streaming(server: Server, generator: Generator) -> Running:
    """Ask for one stream after the other."""
    path = f"/v2/models/{STREAM}/generate_stream"
    endpoint = Endpoint("http", "127.0.0.1", server.port("http"), path, streaming=True)
    asked = {"IN": list(range(RESPONSES)), "DELAY": [0] * RESPONSES, "WAIT": 0}
    payload = http_request(endpoint, {"Content-Type": "application/json"}, json.dumps(asked).encode())
    return generator.running(Job(endpoint, (payload,), concurrency=1, timeout_s=120))


@contextmanager
def idling(server: Server, generator: Generator) -> Iterator[None]:
    """Keep connections open, each after one request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * IDLE)), hard))
    with ExitStack() as stack:
        for _ in range(IDLE):
            connection = HTTPConnection("127.0.0.1", server.port("http"), timeout=60)
            stack.callback(connection.close)
            connection.request("GET", "/v2/health/live")
            connection.getresponse().read()
        yield


def measure(
    server: Server, idle: Sequence[Server], neighbour: Neighbour, small: Workload, plan: Plan, round_: int
) -> Beside:
    """Load `server` with small requests, alone and then beside the neighbour, `idle` ones frozen."""
    job = closed(small, "http", server.port("http"), CONNECTIONS)
    with frozen(idle), Generator() as other, plan.generator.running(job) as load:
        load.warm_up(plan.warmup_s)
        alone = load.watch(plan.seconds)
        with neighbour.begin(server, other) as its:
            load.warm_up(plan.warmup_s)
            start = time.monotonic_ns()
            beside = load.watch(plan.seconds)
            other_load = its.since(start) if its else NOTHING
    return Beside(neighbour.key, server.name, round_, alone, beside, other_load)


def measure_interleaved(
    servers: Sequence[Server], neighbour: Neighbour, small: Workload, plan: Plan, rounds: int
) -> list[Beside]:
    """Measure A B, B A, ... as the other cells are."""
    able = [s for s in servers if s.command.general and s.has(neighbour.model)]
    measured = []
    for round_ in range(rounds):
        for server in able if round_ % 2 == 0 else reversed(able):
            idle = [other for other in servers if other is not server]
            measured.append(measure(server, idle, neighbour, small, plan, round_))
    return measured


HEADER = [
    "cell",
    "server",
    "its/s",
    "alone/s",
    "beside/s",
    "rate kept",
    "p99 ms",
    "beside",
    "p99 ratio",
    "errors",
]


def rows(measured: Sequence[Beside]) -> Rows:
    """Return a row for each server, of medians."""
    return [
        _row([each for each in measured if each.server == name])
        for name in unique(m.server for m in measured)
    ]


def _row(mine: Sequence[Beside]) -> list[str]:
    def middle(value: Callable[[Beside], float]) -> float:
        return median(map(value, mine))

    return [
        mine[0].cell,
        mine[0].server,
        f"{middle(lambda m: m.neighbour.infer_per_s):,.1f}",
        f"{middle(lambda m: m.alone.infer_per_s):,.0f}",
        f"{middle(lambda m: m.beside.infer_per_s):,.0f}",
        f"{middle(lambda m: m.kept):.2f}",
        f"{middle(lambda m: m.alone.p99_ms):.2f}",
        f"{middle(lambda m: m.beside.p99_ms):.2f}",
        f"{middle(lambda m: m.p99_ratio):.1f}",
        str(sum(m.alone.errors + m.beside.errors + m.neighbour.errors for m in mine) or ""),
    ]
