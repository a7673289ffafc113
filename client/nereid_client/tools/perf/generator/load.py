"""The load of one process: requests at moments of their own (open loop), or one after the other (closed)."""

from __future__ import annotations

import asyncio
import resource
import time
from array import array
from collections import Counter, deque
from time import monotonic_ns
from typing import Any, Final

from nereid_client import Tls
from nereid_client.tools.perf.generator.answers import Answers
from nereid_client.tools.perf.generator.call import Call, Connection
from nereid_client.tools.perf.generator.http1 import HttpConnection
from nereid_client.tools.perf.generator.http2 import GrpcConnection
from nereid_client.tools.perf.generator.job import End, Job, Told
from nereid_client.tools.perf.generator.pacer import Pacer
from nereid_client.tools.perf.generator.plain import Links
from nereid_client.tools.perf.generator.records import Records
from nereid_client.tools.perf.generator.script import Kept
from nereid_client.tools.perf.generator.source import source_of

_OK: Final = End.OK
_SWEEP_S: Final = 0.1
_OPENING: Final = 32
"""Connections that are being opened at a time."""
_PAUSE_S: Final = 0.05
"""After a connection that failed."""
_MAX_TEXTS: Final = 20
_FIRST_CONNECTIONS: Final = {"http": 8, "grpc": 2}
"""That an open loop begins with; it opens more when requests wait for one."""


class Generator:
    """Sends the requests of a job, and keeps a record of each.

    Call `open`, `begin`, and at last `stop`; `told` tells what has happened since it was last called.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._source = source_of(job)
        self._answers = Answers(job) if job.expected else None
        self._kept = Kept(job.script) if job.script is not None else None
        self._free: deque[Connection] = deque()
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._in_flight: set[Call] = set()
        self._records, self._moments = Records(), array("q")
        self._errors: Counter[str] = Counter()
        self._pacer: Pacer | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopped = False
        self._limit = job.concurrency or job.connections
        self._streaming = job.endpoint.streaming
        self._again: list[tuple[Connection, Call]] = []
        self._repeats = bool(job.concurrency) and not (
            job.sequences or job.script or job.expected or self._streaming or job.endpoint.tls
        )
        self._alike = len(job.payloads) == 1

    async def open(self) -> None:
        """Open the first connections.

        Raises:
            OSError: that failed.
        """
        _allow_files(self._limit)
        first = self._job.concurrency or _FIRST_CONNECTIONS[self._job.endpoint.protocol]
        self._loop = asyncio.get_running_loop()
        self._links = Links(self._loop, self._send_again)
        self._announced = asyncio.Event()
        try:
            await self._open(min(first, self._limit))
        except (OSError, TimeoutError):
            await self._close()
            raise

    async def _open(self, first: int) -> None:
        for start in range(0, first, _OPENING):
            opening = (self._connect() for _ in range(min(_OPENING, first - start)))
            for failure in await asyncio.gather(*opening, return_exceptions=True):
                if failure is not None:
                    raise failure
        async with asyncio.timeout(self._job.timeout_s):
            while len(self._connections) < first:
                self._announced.clear()
                await self._announced.wait()

    def begin(self, start: int) -> None:
        """Begin at a moment of the monotonic clock, in nanoseconds."""
        job = self._job
        moments = [start] * job.concurrency if job.arrivals is None else (job.arrivals + start).tolist()
        self._links.alone = bool(job.concurrency)
        self._pacer = Pacer(self._loop, moments, self._arrive, self._links.serve)
        self._sweep()

    async def stop(self) -> None:
        """Begin no request any more, and wait for those that are in flight; the rest is late."""
        self._stopped, self._repeats = True, False
        if self._pacer is not None:
            self._pacer.close()
        end = time.monotonic() + self._job.timeout_s
        while (self._in_flight or self._source.ready()) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._fail_waiting(monotonic_ns())
        for call in list(self._in_flight):
            self._record(call, End.LATE, "no answer in time")
        for task in self._opening:
            task.cancel()
        await self._close()

    async def _close(self) -> None:
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)  # they are lost
        self._links.close()
        if self._kept is not None:
            self._kept.close()

    def told(self) -> Told:
        """Return what has happened since the last call."""
        kept = self._kept.take() if self._kept is not None else b""
        told = Told(self._records.take(), self._moments.tobytes(), kept, self._errors, time.process_time())
        self._moments, self._errors = array("q"), Counter()
        return told

    def _arrive(self, intended: int, noticed: int) -> None:
        self._source.add(intended, noticed)
        self._pump()

    def _pump(self) -> None:
        """Send what waits, as far as there are connections."""
        free, source = self._free, self._source
        while source.ready():
            if not free:
                self._grow()
                return
            connection = free.popleft()
            if not connection.leaving:
                self._send(connection)

    def _send(self, connection: Connection) -> None:
        call = self._source.take()
        if self._answers is not None:
            call.body = []
        if self._streaming:
            call.moments = []
        self._in_flight.add(call)
        call.sent = monotonic_ns()
        connection.send(call)

    def finish(self, connection: Connection, call: Call, end: End = End.OK, text: str = "") -> None:
        """See `Owner`."""
        if self._repeats and end is _OK and not self._source.ready() and not connection.leaving:
            self._records.repeat((call.intended, call.noticed, call.sent, monotonic_ns()))
            self._again.append((connection, call))
            return
        if call not in self._in_flight:
            return
        if self._answers is not None and end is End.OK:
            end, text = self._answers.judged(call)
        now = self._record(call, end, text)
        self._source.free(call, end is End.OK)
        again = self._job.concurrency and not self._stopped
        if again and end is End.CUT:  # do not turn in circles
            self._loop.call_later(_PAUSE_S, self._begin_another)
            again = False
        if again:
            self._source.add(now, now)
        if not connection.leaving:
            self._free.append(connection)
        self._pump()

    def _send_again(self) -> None:
        """Send the next requests of connections whose answers were read in this turn.

        All answers are read before: so the server has its requests together, and its answers too.
        """
        fill = None if self._alike else self._source.fill
        for connection, call in self._again:
            if fill is not None:
                fill(call)
            call.intended = call.noticed = call.sent = monotonic_ns()
            connection.send(call)
        self._again.clear()

    def _begin_another(self) -> None:
        now = monotonic_ns()
        if not self._stopped:
            self._arrive(now, now)

    def _record(self, call: Call, end: End, text: str) -> int:
        """Keep the record of a request that ends now; return the moment."""
        now, moments = monotonic_ns(), call.moments
        self._in_flight.discard(call)
        if self._kept is not None:
            self._kept.add(call, end, text)
        row = (
            call.intended,
            call.noticed,
            call.sent,
            now,
            end,
            *((moments[0], len(moments)) if moments else (0, 0)),
        )
        self._records.add(row)
        if moments:
            self._moments.extend(moments)
        if end:
            known = text in self._errors or len(self._errors) < _MAX_TEXTS
            self._errors[text if known else "others"] += 1
        return now

    def opened(self, connection: Connection, seats: int) -> None:
        """See `Owner`."""
        self._connections.add(connection)
        self._announced.set()
        self._free.extend([connection] * (1 if self._job.concurrency else seats))
        self._pump()

    def lost(self, connection: Connection) -> None:
        """See `Owner`."""
        self._connections.discard(connection)
        connection.leaving = True
        self._pump()

    def _grow(self) -> None:
        """Open connections for requests that wait."""
        room = self._limit - len(self._connections) - len(self._opening)
        for _ in range(min(room, self._source.ready(), _OPENING - len(self._opening))):
            task = self._loop.create_task(self._try_connect())
            self._opening.add(task)
            task.add_done_callback(self._opened_or_not)

    def _opened_or_not(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._pump()

    async def _try_connect(self) -> None:
        try:
            await self._connect()
        except OSError as error:
            await asyncio.sleep(_PAUSE_S)
            if (call := self._source.overdue(monotonic_ns())) is not None:
                self._fail(call, f"no connection: {error.strerror or error}", End.CUT)

    def _fail(self, call: Call, text: str, end: End) -> None:
        """Fail a request that waits."""
        call.sent = monotonic_ns()
        self._record(call, end, text)
        if self._job.concurrency and not self._stopped:
            self._loop.call_later(_PAUSE_S, self._begin_another)

    async def _connect(self) -> None:
        endpoint = self._job.endpoint
        kind: Any = HttpConnection if endpoint.protocol == "http" else GrpcConnection
        address = endpoint.host, endpoint.port
        if endpoint.tls is None:
            await self._links.connect(lambda: kind(self, endpoint), *address)
        else:
            context = _context(endpoint.tls, kind)
            await self._loop.create_connection(lambda: kind(self, endpoint), *address, ssl=context)

    def _sweep(self) -> None:
        """End what is late."""
        before = monotonic_ns() - int(self._job.timeout_s * 1e9)
        for connection in list(self._connections):
            connection.expire(before)
        self._fail_waiting(before)
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def _fail_waiting(self, before: int) -> None:
        while (call := self._source.overdue(before)) is not None:
            self._fail(call, "no connection was free in time", End.LATE)


def _context(tls: Tls, kind: type) -> Any:
    context = tls.context()
    if kind is GrpcConnection:
        context.set_alpn_protocols(["h2"])
    return context


def _allow_files(connections: int) -> None:
    """Let this process have as many files as connections, where that may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
