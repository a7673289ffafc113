"""Runs of requests at a server, at moments of their own or as fast as it goes, and what was answered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from nereid_client.tools.perf import figures
from nereid_client.tools.perf.generator.arrivals import Offsets
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.http2 import grpc_payload
from nereid_client.tools.perf.generator.job import COLUMNS, End, Job, Level, Told, rows_of
from nereid_client.tools.perf.generator.worker import NoConnection, Workers, shares
from nereid_client.tools.perf.result import Result, Seen, result_of
from nereid_client.tools.perf.signals import Signals
from nereid_client.tools.progress import Shown
from nereid_client.tools.replay.options import Options, ReplayError
from nereid_client.tools.replay.spool import Spool, Target
from nereid_client.tools.replay.wire import UNREADABLE, Outputs, grpc_reader, http_outputs

_TICK_S: Final = 0.1
_SENT, _ENDED, _STATUS = (COLUMNS.index(name) for name in ("sent", "ended", "status"))
_WAY_S: Final = 0.3


@dataclass(frozen=True)
class Failed:
    """A request that was not answered; `reached` tells whether the server has refused it."""

    text: str
    reached: bool


Answer = list[Outputs] | Failed
"""The outputs of each response, or a failure."""


class Answers:
    """What was answered to the requests of a run, by the number of the row in its plan."""

    def __init__(self, spool: Spool, told: Sequence[Sequence[Told]]) -> None:
        self._files = [Path(f"{spool.path}.answers.{worker}") for worker in range(len(told))]
        over_grpc = spool.target.address.protocol == "grpc"
        self._read, self._streamed = grpc_reader() if over_grpc else (http_outputs, http_outputs)
        self._streams = frozenset(
            number for number, row in enumerate(spool.plan.rows) if row.model in spool.target.decoupled
        )
        self._places: dict[int, tuple[int, int, int, int]] = {}
        self.service_ns: dict[int, int] = {}
        for worker, each in enumerate(told):
            kept = np.frombuffer(b"".join(one.kept for one in each), np.int64).reshape(-1, 3)
            for (number, offset, size), record in zip(kept.tolist(), rows_of(each).tolist(), strict=True):
                if number < 0:  # the end of a sequence, which was not recorded
                    continue
                self._places[number] = worker, offset, size, record[_STATUS]
                if record[_STATUS] == End.OK:
                    self.service_ns[number] = record[_ENDED] - record[_SENT]

    def __len__(self) -> int:
        return len(self._places)

    def get(self, number: int) -> Answer | None:
        """Return the answer to a row's request; None if it was not sent."""
        place = self._places.get(number)
        if place is None:
            return None
        worker, offset, size, status = place
        with self._files[worker].open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        if status != End.OK:
            return Failed(data.decode(errors="replace"), status == End.REFUSED)
        try:
            if number in self._streams:
                return [self._streamed(each) for each in _split(data)]
            return [self._read(data)]
        except UNREADABLE as error:
            return Failed(f"unreadable answer: {error}", True)


def _split(data: bytes) -> list[bytes]:
    """Return the responses of a stream, each of which has its length before it."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        found.append(data[at + 4 : end])
        at = end
    return found


@dataclass(frozen=True)
class Ran:
    """A run: its figures and answers; `cut` if a signal has ended it."""

    result: Result
    answers: Answers
    cut: bool


class Loads:
    """Runs, by the same processes. Use it as a context manager."""

    def __init__(self, options: Options, shown: Shown, signals: Signals) -> None:
        self._options, self._shown, self._signals = options, shown, signals
        self._workers = Workers(options.processes)

    def __enter__(self) -> Loads:
        return self

    def __exit__(self, *exc: object) -> None:
        self._workers.__exit__(*exc)

    def run(self, spool: Spool, moments: Offsets | None, stage: str) -> Ran:
        """Send the requests of a spool.

        Args:
            moments: of all rows of the plan; None for as fast as it goes.

        Raises:
            ReplayError: the server cannot be reached.
        """
        options, requests = self._options, spool.requests
        arrivals = None if moments is None else moments[spool.rows]
        job = Job(
            spool.target.endpoint(),
            (),
            arrivals=arrivals,
            concurrency=options.in_flight if arrivals is None else 0,
            connections=options.connections,
            timeout_s=options.timeout_s,
            script=spool.script(),
        )
        last_s = 0.0 if arrivals is None else float(arrivals[-1]) / 1e9
        start, cpu, told = self._watched(job, len(requests), last_s, stage)
        spent = max(time.monotonic_ns() - start, 1) / 1e9
        busy = max((each[-1].cpu_s - begun) / spent for each, begun in zip(told, cpu, strict=True))
        answers = Answers(spool, told)
        cut = len(answers) < int((requests[:, 0] >= 0).sum())
        return Ran(self._figures(job, told, start, busy), answers, cut)

    def _watched(
        self, job: Job, number: int, last_s: float, stage: str
    ) -> tuple[int, list[float], list[list[Told]]]:
        """Send a job's requests and wait for their answers; return the begin and what was told."""
        workers = self._workers
        with self._signals.held():
            try:
                start = workers.begin(shares(job, self._options.processes))
            except NoConnection as error:
                raise ReplayError(f"{job.endpoint.host}:{job.endpoint.port}: {error}") from None
            told = [[each] for each in workers.tell()]
            cpu = [each[0].cpu_s for each in told]
            ended = sum(len(each[0].kept) for each in told) // 24
            latest = start / 1e9 + last_s + self._options.timeout_s + 1.0
            while ended < number and not self._signals.number:
                if last_s and time.monotonic() > latest:
                    break
                self._shown.tick(stage, ended, number, unit="requests")
                time.sleep(_TICK_S)
                for each, more in zip(told, workers.tell(), strict=True):
                    each.append(more)
                    ended += len(more.kept) // 24
            for each, more in zip(told, workers.stop(), strict=True):
                each.append(more)
        return start, cpu, told

    def _figures(self, job: Job, told: Sequence[Sequence[Told]], start: int, busy: float) -> Result:
        rows = rows_of([one for each in told for one in each])
        end = int(rows[:, _ENDED].max()) + 1 if len(rows) else start + 1
        if job.script is not None and job.arrivals is not None:
            seconds = max(float(job.arrivals[-1]) / 1e9, 1e-3)
            level = Level("rate", round(len(job.arrivals) / seconds, 1))
        else:
            level = Level("concurrency", job.concurrency)
        errors: Counter[str] = Counter()
        for each in told:
            for one in each:
                errors.update(one.errors)
        return result_of(Seen(level, rows, start, end, (), True, errors=errors, busy=busy))

    def way_ns(self, target: Target) -> int:
        """Return how long a request takes that does nothing: what is outside of a server's own account."""
        endpoint = target.endpoint()
        if endpoint.protocol == "grpc":
            endpoint = replace(endpoint, path="/inference.GRPCInferenceService/ServerLive")
            payload = grpc_payload(b"")
        else:
            payload = http_request(replace(endpoint, path="/v2/health/live"), {}, b"")
            payload = payload.replace(b"POST", b"GET", 1)
        job = Job(endpoint, (payload,), concurrency=1, timeout_s=self._options.timeout_s)
        try:
            self._workers.begin(shares(job, self._options.processes))
        except NoConnection as error:
            raise ReplayError(f"{endpoint.host}:{endpoint.port}: {error}") from None
        time.sleep(_WAY_S)
        times = figures.service_times(rows_of(self._workers.stop()))
        return int(np.median(times)) if len(times) else 0
