"""Measurement of levels: one server, one model, the same bytes for all of them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from nereid_client import Server, ServerError, Signature
from nereid_client.datatypes import byte_size
from nereid_client.messages import Request
from nereid_client.pool import Lease
from nereid_client.tools.perf import figures, payloads
from nereid_client.tools.perf.generator.arrivals import draw, draw_hard, repeated
from nereid_client.tools.perf.generator.job import Job, Level, Rows, Told, rows_of
from nereid_client.tools.perf.generator.worker import NoConnection, Workers, shares
from nereid_client.tools.perf.inputs import read_expected, read_inputs
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.recorded import pauses
from nereid_client.tools.perf.result import Result, Seen, result_of
from nereid_client.tools.perf.server_share import counts_of, models_of, share
from nereid_client.tools.perf.signals import Signals

_TICK_S: Final = 0.1
_LONGEST_S: Final = 3600.0
"""Of a window that ends with a number of answers."""
_SEQUENCES: Final = 4


class Progress(Protocol):
    """Where it is told how far a measurement is."""

    def tick(self, stage: str, done: float, total: float, *, unit: str = "") -> None:
        """Tell it: so many of at most so many; seconds unless another unit is given."""


class Bench:
    """A model that is measured. Use it as a context manager; then `measure` any number of levels.

    Args:
        keep: is given all that was seen of each level.
        workers: generators that were started before; without them it starts its own.
        signals: end a measurement, and then the run.

    Attributes:
        last: the result of the measurement that a signal has ended; None if there is none.

    Raises:
        PerfError: from entering it: the server or model cannot be measured so.
    """

    def __init__(
        self,
        options: Options,
        progress: Progress,
        keep: Callable[[Seen], None] | None = None,
        workers: Workers | None = None,
        signals: Signals | None = None,
    ) -> None:
        self._options, self._progress, self._keep, self._given = options, progress, keep, workers
        self._signals = signals or Signals()
        self._stack = ExitStack()
        self._measured = 0
        self.last: Result | None = None
        self.server: Server

    def __enter__(self) -> Bench:
        try:
            self._open()
        except ServerError as error:
            self._stack.close()
            raise PerfError(f"{self._options.address.url}: {error.message}") from None
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        options = self._options
        address = options.address
        self._workers = self._given or self._stack.enter_context(Workers(options.processes))
        self.server = self._stack.enter_context(
            Server(address.url, headers=options.headers, tls=address.tls, retry=False, timeout=10.0)
        )
        model = self.server.model(options.model, options.version)
        signature = model.signature()
        if signature.decoupled and not options.streaming:
            raise PerfError(f"model '{options.model}' is decoupled: give --streaming")
        self._models = models_of(self.server, options.model, options.version)
        self._make_requests(signature)
        check_fits(options, model.described()[1], bool(self._sequences))

    def _make_requests(self, signature: Signature) -> None:
        options = self._options
        data = read_inputs(options, signature)
        sequences = bool(options.sequences) or any(len(each) > 1 for each in data)
        flat = [step for each in data for step in each]
        requests = payloads.requests_of(options, signature, flat)
        self._expected: tuple[Any, ...] = ()
        if options.expect:
            self._expected = self._expectation(signature, flat, requests, sequences)
        if options.shared_memory != "none":
            requests = self._in_shared_memory(requests, signature)
        self._endpoint = payloads.endpoint_of(options)
        self._sequences: list[list[Request]] = []
        if sequences:
            ends = np.cumsum([len(each) for each in data]).tolist()
            self._sequences = [requests[end - len(each) : end] for each, end in zip(data, ends, strict=True)]
            self._payloads: tuple[bytes, ...] = ()
        else:
            self._payloads = payloads.payloads_of(self._endpoint, requests)

    def _expectation(
        self, signature: Signature, flat: Sequence[Any], requests: Sequence[Request], sequences: bool
    ) -> tuple[Any, ...]:
        options = self._options
        if sequences or options.shared_memory != "none":
            raise PerfError("--expect checks answers in the body, and none of sequences")
        if options.expect == "first":
            model = self.server.model(options.model, options.version)
            if options.streaming:
                return tuple(tuple(map(dict, model.stream(step))) for step in flat)
            return tuple((dict(model(step)),) for step in flat)
        read = read_expected(Path(options.expect), signature, options.batch)
        expected = read if options.streaming else [[step] for each in read for step in each]
        if len(expected) != len(requests):
            raise PerfError(f"--expect has {len(expected)} steps, the inputs have {len(requests)}")
        return tuple(map(tuple, expected))

    def _in_shared_memory(self, requests: Sequence[Request], signature: Signature) -> list[Request]:
        if self._options.streaming and self._options.address.protocol == "http":
            raise PerfError("streams over HTTP take no shared memory")
        rows = max(
            (each.shape[0] for request in requests for each in request.inputs if each.shape), default=1
        )
        sizes = [
            byte_size(spec.datatype, (rows, *spec.shape[1:]) if signature.batched else spec.shape)
            for spec in signature.outputs.values()
        ]
        size = payloads.slot_bytes(requests, sum((each or 0) + 64 for each in sizes))
        leases: list[Lease] = []
        self._stack.callback(leases.clear)
        on_gpu = self._options.shared_memory == "cuda"
        try:
            entered = self.server.pool(len(requests), size, "cuda" if on_gpu else "cpu")
            return payloads.placed(requests, self._stack.enter_context(entered), signature, leases)
        except (ImportError, RuntimeError) as error:  # of PyTorch: there is none, or no GPU
            if on_gpu:
                raise PerfError(f"--shared-memory cuda: {error}") from None
            raise

    def job(self, level: Level, seconds: float, capacity: float = 0.0) -> Job:
        """Return the load of a level for so long, with arrivals that no job before it had."""
        options = self._options
        closed = level.kind == "concurrency"
        number = max(options.sequences or _SEQUENCES, int(level.value) if closed else options.processes)
        sequences = (
            payloads.sequences_of(
                self._endpoint, self._sequences, number, options.sequence_length, options.first_sequence
            )
            if self._sequences
            else ()
        )
        return Job(
            self._endpoint,
            self._payloads,
            sequences,
            None if closed else self._arrivals(level.value, seconds, capacity),
            int(level.value) if closed else 0,
            options.connections,
            options.timeout_s,
            self._expected,
            options.tolerance,
        )

    def _arrivals(self, rate: float, seconds: float, capacity: float) -> Any:
        options = self._options
        if options.intervals is not None:
            return repeated(pauses(options.intervals, options.model), seconds)
        self._measured += 1
        seed = options.seed, self._measured
        if capacity:
            moments = draw_hard(options.distribution, rate, seconds, seed, capacity)
        else:
            moments = draw(options.distribution, rate, seconds, seed)
        return moments[: options.requests] if options.requests else moments

    def measure(self, level: Level, windows: int = 0, window_s: float = 0.0, capacity: float = 0.0) -> Result:
        """Measure a level: until windows agree, or as long as the options or arguments say.

        Args:
            capacity: what the server answers a second, for arrivals that are harder than most; 0 for any.

        Raises:
            PerfError: the server cannot be reached.
            Stopped: a signal came; what was seen until then is `last`.
        """
        with self._signals.held():
            result = self._measure(level, windows, window_s, capacity)
        self.last = result if self._signals.number and result.requests else None
        self._signals.check()
        return result

    def _measure(self, level: Level, windows: int, window_s: float, capacity: float) -> Result:
        plan = _Plan.of(self._options, level, windows, window_s)
        longest_s = plan.warmup_s + plan.most_s + 1.0
        jobs = shares(self.job(level, longest_s, capacity), self._options.processes)
        before = counts_of(self.server, self._models, self._options.version)
        try:
            start = self._workers.begin(jobs)
        except NoConnection as error:
            raise PerfError(f"{self._options.address.url}: {error}") from None
        cpu = [told.cpu_s for told in self._workers.tell()]
        try:
            took = self._watch(level, plan, start)
        finally:
            loaded_s = max((time.monotonic_ns() - start) / 1e9, 1e-9)  # until after the last window
            last = self._workers.stop()
        took.add(last)
        after = counts_of(self.server, self._models, self._options.version)
        busy = max((told.cpu_s - begun) / loaded_s for told, begun in zip(last, cpu, strict=True))
        seen = Seen(
            level,
            took.rows(),
            took.start,
            took.end,
            tuple(took.windows),
            took.agreed,
            self._options.batch,
            took.errors,
            busy,
            share(before, after),
            np.frombuffer(b"".join(took.moments), np.int64) if self._options.streaming else None,
            self._options.percentile,
            self._options.percentiles,
            bool(self._signals.number),
        )
        if self._keep is not None:
            self._keep(seen)
        return result_of(seen)

    def _watch(self, level: Level, plan: _Plan, start: int) -> _Took:
        """Wait until the level is over."""
        took = _Took(start + int(plan.warmup_s * 1e9))
        closed = level.kind == "concurrency"
        for _ in range(plan.windows):
            if self._signals.number:
                break
            begin, took.end = took.end, self._window(level, plan, took)
            took.windows.append(figures.window(took.rows(), begin, took.end, self._options.percentile))
            took.agreed = figures.agree(took.windows, plan.agreeing, self._options.stability, closed)
            if took.agreed and plan.stops:
                break
        return took

    def _window(self, level: Level, plan: _Plan, took: _Took) -> int:
        """Wait until a window is over: its time, or its answers; return the moment."""
        end, ended = took.end + int(plan.window_s * 1e9), 0
        while (left := (end - time.monotonic_ns()) / 1e9) > 0:
            self._tell(level, plan, took, left, ended)
            time.sleep(min(left, _TICK_S))
            if self._signals.number:
                took.add(self._workers.tell())
                return max(time.monotonic_ns(), took.start)
            if plan.requests:
                ended = figures.ended_since(took.add(self._workers.tell()).rows(), took.end)
                if ended >= plan.requests:
                    return time.monotonic_ns()
        took.add(self._workers.tell())
        return end

    def _tell(self, level: Level, plan: _Plan, took: _Took, left: float, ended: int) -> None:
        """Say how far the level is: in answers if they end its windows, for then the time is not known."""
        if plan.requests:
            done = len(took.windows) * plan.requests + ended
            self._progress.tick(str(level), done, plan.windows * plan.requests, unit="requests")
            return
        passed = (took.end - took.start) / 1e9 + plan.warmup_s + plan.window_s - left
        self._progress.tick(str(level), max(passed, 0.0), plan.warmup_s + plan.most_s)


def check_fits(options: Options, configuration: Mapping[str, Any], sequences: bool) -> None:
    """Find what the server would refuse of every request.

    Args:
        configuration: the model's, as the JSON of the protocol.
        sequences: whether requests are steps of some.

    Raises:
        PerfError: it does not fit the model.
    """
    model, most = f"model '{options.model}'", configuration.get("max_batch_size", 0)
    if most and options.batch > most:
        raise PerfError(f"{model} takes {most} rows at most: -b {options.batch} is too much")
    if configuration.get("sequence_batching") is not None and not sequences:
        raise PerfError(f"{model} keeps sequences: say how many at a time, e.g. --num-of-sequences=4")


@dataclass(frozen=True)
class _Plan:
    """How long a level takes: windows of so many seconds, or of so many answers that come before.

    Attributes:
        agreeing: windows that have to agree.
        stops: the level is over when they do.
    """

    window_s: float
    windows: int
    agreeing: int
    stops: bool
    warmup_s: float
    requests: int = 0

    @property
    def most_s(self) -> float:
        return self.window_s * self.windows

    @classmethod
    def of(cls, options: Options, level: Level, windows: int, window_s: float) -> _Plan:
        warmup_s = options.warmup_s
        if windows:
            return cls(window_s or options.window_s, windows, windows, False, min(warmup_s, 0.5))
        if number := options.requests:
            longest = number / level.value + options.timeout_s if level.kind == "rate" else _LONGEST_S
            return cls(longest, 1, 1, True, 0.0, number)
        if options.duration_s:
            parts = max(math.floor(options.duration_s / options.window_s), options.agreeing)
            return cls(options.duration_s / parts, parts, parts, False, warmup_s)
        if number := options.window_requests:
            longest = 2 * number / level.value + 1 if level.kind == "rate" else _LONGEST_S
            return cls(longest, options.windows, options.agreeing, True, warmup_s, number)
        return cls(options.window_s, options.windows, options.agreeing, True, warmup_s)


class _Took:
    """What a level has taken so far; `start` and `end` in nanoseconds."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.windows: list[figures.Window] = []
        self.agreed = False
        self.errors: Counter[str] = Counter()
        self.moments: list[bytes] = []
        self._told: list[Told] = []

    def add(self, told: Sequence[Told]) -> _Took:
        for each in told:
            self.errors.update(each.errors)
            self.moments.append(each.moments)
            self._told.append(replace(each, moments=b""))
        return self

    def rows(self) -> Rows:
        """Return all records."""
        rows = rows_of(self._told)
        self._told = [Told(rows.tobytes())]
        return rows
