"""`nereid perf` in a closed loop against wrk (HTTP) and h2load (gRPC): the same bytes to one server, in turn.

    python -m benchmarks.closed_loop 8000 8001                      a server's ports of HTTP and of gRPC
    python -m benchmarks.closed_loop 8000 8001 --connections 32 --rounds 9 --protocols http

The rate of perf is given as a share of the other tool's in the same round: the median of the rounds, and
their range. `us` is the CPU time of the generator for a request. `void` counts the rounds that perf itself
marked so.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from app.tools.perf import payloads
from app.tools.perf.bench import Bench
from app.tools.perf.generator.job import Level
from app.tools.perf.inputs import read_inputs
from app.tools.perf.options import Options, PerfError, read_address
from benchmarks.load import h2load, wrk
from benchmarks.report import table
from benchmarks.workloads import HEADER_LENGTH, IDENTITY, Workload

CONNECTIONS = (1, 8, 32)
WARMUP_S = 0.5


Figures = tuple[float, float]
"""Requests a second, and microseconds of CPU that the generator took for each."""
Measure = Callable[[], Figures]


class Silent:
    """Shows no progress."""

    def tick(self, stage: str, done: float, total: float, *, unit: str = "") -> None:
        """Show nothing."""


@dataclass(frozen=True)
class Same(Workload):
    """The request that perf sends, for other tools."""

    head: bytes = b""
    body: bytes = b""

    def http_body(self) -> tuple[bytes, int]:
        lengths = [line for line in self.head.decode().split("\r\n") if line.startswith(HEADER_LENGTH)]
        return self.body, int(lengths[0].partition(":")[2])

    def grpc_message(self) -> bytes:
        return self.body


def same(bench: Bench, options: Options) -> Same:
    """Return the request of a run."""
    signature = bench.server.model(options.model).signature()
    steps = [step for each in read_inputs(options, signature) for step in each]
    (sent,) = payloads.payloads_of(
        payloads.endpoint_of(options), payloads.requests_of(options, signature, steps)
    )
    head, body = sent.split(b"\r\n\r\n", 1) if options.address.protocol == "http" else (b"", sent[5:])
    return Same("perf's", options.model, {}, (), head=head, body=body)


def compare(options: Options, given: argparse.Namespace, scratch: Path) -> list[list[str]]:
    """Measure all numbers of connections over one protocol; return the rows of the table."""
    address = options.address
    tool = wrk if address.protocol == "http" else h2load
    rows = []
    with Bench(options, Silent()) as bench:
        workload = same(bench, options)
        for connections in given.connections:
            void = 0

            def own(connections: int = connections) -> Figures:
                nonlocal void
                result = bench.measure(Level("concurrency", connections), 1, given.seconds)
                if result.failed:
                    raise PerfError(str(result.errors))
                void += bool(result.void)
                return result.rate, 1e6 * result.busy / result.rate

            def other(connections: int = connections) -> Figures:
                before = children_s()
                found = tool(workload, address.port, connections, given.seconds, scratch)
                if found.errors:
                    raise PerfError(f"{tool.__name__}: {found.errors} errors")
                return found.infer_per_s, 1e6 * (children_s() - before) / found.requests

            rates = [in_turn(own, other, number) for number in range(given.rounds)]
            rows.append([address.protocol, f"x{connections}", tool.__name__, *figures(rates), str(void)])
            print(*rows[-1], flush=True)
    return rows


def children_s() -> float:
    """Return the CPU time of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def in_turn(own: Measure, other: Measure, number: int) -> tuple[Figures, Figures]:
    """Measure both; who is first changes from round to round."""
    if number % 2:
        then = other()
        return own(), then
    return own(), other()


def figures(rounds: Sequence[tuple[Figures, Figures]]) -> list[str]:
    """Return the median rates and costs of both, and the median, quartiles and range of the rates' ratios."""
    sides = list(zip(*rounds, strict=True))
    rates = [f"{median(rate for rate, _ in side):.0f}" for side in sides]
    costs = [f"{median(cost for _, cost in side):.1f}" for side in sides]
    ratios = [own[0] / other[0] for own, other in rounds]
    low, middle, high = (f"{each:.2f}" for each in quantiles(ratios, n=4))
    return [*rates, *costs, middle, f"{low} to {high}", f"{min(ratios):.2f} to {max(ratios):.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("http", type=int, help="port")
    parser.add_argument("grpc", type=int, help="port")
    parser.add_argument("--model", default=IDENTITY)
    parser.add_argument("--shape", default="INPUT0:16")
    parser.add_argument(
        "--connections", default=CONNECTIONS, type=lambda text: [int(n) for n in text.split(",")]
    )
    parser.add_argument("--protocols", default="http,grpc")
    parser.add_argument("--processes", type=int, default=1, help="of perf (1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    given = parser.parse_args()
    name, _, dims = given.shape.partition(":")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for protocol in given.protocols.split(","):
            options = Options(
                given.model,
                read_address(f"127.0.0.1:{getattr(given, protocol)}", protocol),
                shapes={name: tuple(int(dim) for dim in dims.split(","))},
                warmup_s=WARMUP_S,
                processes=given.processes,
            )
            rows += compare(options, given, Path(scratch))
    header = ["protocol", "connections", "beside", "perf/s", "its/s", "perf us", "its us"]
    header += ["ratio", "half of the rounds", "range", "void"]
    print("\n" + table(header, rows))


if __name__ == "__main__":
    main()
