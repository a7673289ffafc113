"""One measurement: a server, a workload and a number of connections, with its rates and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.load import NOTHING, Generator, LoadFailed, LoadResult, closed
from benchmarks.processes import CpuMeter, Usage
from benchmarks.servers import Counts, Server, ServerFailed, frozen
from benchmarks.workloads import Workload, ask_grpc, ask_http, check_same


@dataclass(frozen=True)
class Cell:
    """A row of the table."""

    workload: Workload
    protocol: str
    connections: int

    @property
    def key(self) -> str:
        return f"{self.protocol} {self.workload.name} x{self.connections}"

    @property
    def sensible(self) -> bool:
        """Return whether to measure this: shared memory is for few clients, which are on the same machine."""
        few = self.workload.regions is None or self.connections <= 8
        return few and self.protocol in self.workload.protocols


@dataclass(frozen=True)
class Measurement:
    cell: str
    server: str
    round: int
    load: LoadResult
    mean_batch: float
    usage: dict[str, Usage]
    complaint: str = ""


@dataclass(frozen=True)
class Plan:
    seconds: float
    warmup_s: float
    generator: Generator


def measure(server: Server, idle: Sequence[Server], cell: Cell, plan: Plan, round_: int) -> Measurement:
    """Load `server` while `idle` ones are frozen."""
    workload = server.asked(cell.workload)
    job = closed(workload, cell.protocol, server.port(cell.protocol), cell.connections)
    cell = replace(cell, workload=workload)
    with frozen(idle), plan.generator.running(job) as running:
        running.warm_up(plan.warmup_s)
        before = server.counts(workload.model)
        meter = CpuMeter(server.process)
        load = running.watch(plan.seconds)
        usage = meter.stop()
        after = server.counts(workload.model)
    counts = after.since(before) if before and after else None
    mean_batch = counts.inferences / counts.executions if counts and counts.executions else 0.0
    return Measurement(cell.key, server.name, round_, load, mean_batch, usage, complaint(load, counts))


def complaint(load: LoadResult, counts: Counts | None) -> str:
    """Return why the figures are invalid: failed requests, or fewer executed than answered."""
    if counts is None:
        return f"{load.errors} errors at the client" if load.errors else ""
    if load.errors or counts.failures:
        return f"{load.errors} errors at the client, {counts.failures} at the server"
    if counts.inferences < 0.98 * load.requests:
        return f"{load.requests} answers, {counts.inferences} inferences counted"
    return ""


def measure_interleaved(servers: Sequence[Server], cell: Cell, plan: Plan, rounds: int) -> list[Measurement]:
    """Measure A B C, C B A, ...: every server once a round, so that a drift of the machine cancels out."""
    able = [server for server in servers if server.serves(cell.workload, cell.protocol)]
    results = []
    for round_ in range(rounds):
        for server in able if round_ % 2 == 0 else reversed(able):
            idle = [other for other in servers if other is not server]
            try:
                results.append(measure(server, idle, cell, plan, round_))
            except (LoadFailed, ServerFailed) as error:
                results.append(Measurement(cell.key, server.name, round_, NOTHING, 0.0, {}, str(error)))
    return results


def check_answers(servers: Sequence[Server], workload: Workload, protocols: Sequence[str]) -> None:
    """Check that every server answers the bytes that will be sent, and all with the same values."""
    ask = {"http": ask_http, "grpc": ask_grpc}
    answers = [
        ask[protocol](server.asked(workload), server.port(protocol))
        for server in servers
        for protocol in protocols
        if protocol in workload.protocols and server.serves(workload, protocol)
    ]
    for answer in answers:
        check_same(workload, answer, answers[0])
