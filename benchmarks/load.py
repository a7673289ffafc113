"""Loads by `nereid perf`'s generator: the same bytes, in a closed loop or at a rate.

It costs a few microseconds a request: on a small machine the server is the limit, not the generator.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks.workloads import HEADER_LENGTH, MODEL_INFER, Workload
from nereid_client.tools.perf.generator.arrivals import draw
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.http2 import grpc_payload
from nereid_client.tools.perf.generator.job import COLUMNS, End, Endpoint, Job, Rows, Told, rows_of
from nereid_client.tools.perf.generator.worker import NoConnection, Workers

_INTENDED, _ENDED, _STATUS = (COLUMNS.index(name) for name in ("intended", "ended", "status"))
_LONGEST_S = 60.0
"""Until a request without an answer has failed."""


@dataclass(frozen=True)
class LoadResult:
    """What was answered in a time.

    Attributes:
        failures: how other requests ended, with their number; of all that ended since the last look.
        texts: what they were told, with their number; "others" beside the first of many texts.
    """

    infer_per_s: float
    p50_ms: float
    p99_ms: float
    requests: int
    failures: Counter[End]
    texts: Counter[str]

    @classmethod
    def of(cls, told: Sequence[Told], start: int, end: int) -> LoadResult:
        """Return the figures of the requests that have ended between two moments."""
        every: Rows = rows_of(told)
        ended, status = every[:, _ENDED], every[:, _STATUS]
        rows = every[(status == End.OK) & (ended >= start) & (ended < end)]
        ms = (rows[:, _ENDED] - rows[:, _INTENDED]) / 1e6
        p50, p99 = np.percentile(ms, (50, 99)) if len(ms) else (0.0, 0.0)
        failures = Counter(map(End, status[status != End.OK].tolist()))
        texts = sum((each.errors for each in told), Counter[str]())
        rate = len(rows) * 1e9 / (end - start)
        return cls(rate, float(p50), float(p99), len(rows), failures, texts)

    @property
    def errors(self) -> int:
        return self.failures.total()


NOTHING = LoadResult(0.0, 0.0, 0.0, 0, Counter(), Counter())


class LoadFailed(RuntimeError):
    """The server cannot be reached."""


class Load:
    """A load that runs."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def warm_up(self, seconds: float) -> None:
        """Wait, and forget what was seen."""
        time.sleep(seconds)
        self._workers.tell()

    def watch(self, seconds: float) -> LoadResult:
        """Return what is answered in the next seconds."""
        start = time.monotonic_ns()
        time.sleep(seconds)
        return self.since(start)

    def since(self, start: int) -> LoadResult:
        """Return what was answered since a moment of the monotonic clock."""
        return LoadResult.of(self._workers.tell(), start, time.monotonic_ns())


class Generator:
    """A process that sends requests. Use it as a context manager."""

    def __init__(self) -> None:
        self._workers = Workers(1)

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *exc: object) -> None:
        self._workers.__exit__(*exc)

    @contextmanager
    def running(self, job: Job) -> Iterator[Load]:
        """Run a load; wait at last for the answers to what was sent.

        Raises:
            LoadFailed: the server cannot be reached.
        """
        self._begin(job)
        try:
            yield Load(self._workers)
        finally:
            self._workers.stop()

    def run(self, job: Job, seconds: float) -> LoadResult:
        """Run a load for so long; return its figures, with the failures of all that was sent.

        Raises:
            LoadFailed: the server cannot be reached.
        """
        start = self._begin(job)
        time.sleep(seconds)
        return LoadResult.of(self._workers.stop(), start, start + int(seconds * 1e9))

    def _begin(self, job: Job) -> int:
        try:
            return self._workers.begin([job])
        except NoConnection as error:
            raise LoadFailed(str(error)) from None


def closed(workload: Workload, protocol: str, port: int, connections: int) -> Job:
    """Return a load of so many connections with one request in flight each."""
    requests = workload.requests()
    if protocol == "grpc":
        varied = tuple(tuple(each.headers.items()) for each in requests)
        endpoint = Endpoint(protocol, "127.0.0.1", port, MODEL_INFER, varied=varied if any(varied) else ())
        payloads = [grpc_payload(each.grpc_message()) for each in requests]
    else:
        endpoint = Endpoint(protocol, "127.0.0.1", port, workload.path)
        payloads = [_http_payload(endpoint, each) for each in requests]
    return Job(endpoint, tuple(payloads), concurrency=connections, timeout_s=_LONGEST_S)


def _http_payload(endpoint: Endpoint, workload: Workload) -> bytes:
    body, length = workload.http_body()
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)} if length else {}
    return http_request(
        endpoint, {**(headers or {"Content-Type": "application/json"}), **workload.headers}, body
    )


def at_rate(endpoint: Endpoint, payloads: Sequence[bytes], rate: float, seconds: float, wait_s: float) -> Job:
    """Return an open loop of clients that know nothing of each other, and leave after a time."""
    arrivals = draw("poisson", rate, seconds, 1)
    return Job(endpoint, tuple(payloads), arrivals=arrivals, connections=4096, timeout_s=wait_s)
