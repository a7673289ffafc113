"""What tokens of clients cost a request: the same server behind fronts that ask for them, and that do not.

    python -m benchmarks.tokens [--slices 200] [--connections 1 8]

All fronts are in one process and share its replica. They are called in turn, in slices of 20 requests a
connection, with the same header. Printed are the CPU time of an inference without tokens, of ingress and
replica together, and the medians of the ratios of neighbouring slices, each with the bounds between which it
lies by a chance of 95%: with a token without limits, and with one that has patterns, a rate and a number of
inferences in flight, which are never reached. `repeat` is without tokens once more, so what noise makes of 1.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path

from app.access.grants import Grants
from app.access.tokens import make_token
from app.ingress.access.guard import Guard
from app.ingress.service.interface import InferenceService
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from benchmarks.one_process import Callers, OneProcess
from benchmarks.report import table
from benchmarks.servers import free_ports

WITHOUT, REPEAT = "without", "repeat"
LIMITS: dict[str, dict[str, object]] = {
    "unlimited": {},
    "limited": {"rate": "999999999/s", "concurrency": 1000, "models": ("iden*",)},
}
"""Fields of a token, by side."""
COMPARED = (REPEAT, *LIMITS)
REQUESTS, ELEMENTS, WARM_UP = 20, 16, 20
"""Of a connection in one slice; elements of a tensor; slices before the first that counts."""


class Sides(OneProcess):
    """The server with further fronts, one pair for each kind of token."""

    def __init__(self, directory: Path) -> None:
        ports = iter(free_ports(2 * len(LIMITS)))
        self.ports = {side: (next(ports), next(ports)) for side in LIMITS}
        super().__init__(directory)
        self.ports[WITHOUT] = self.ports[REPEAT] = (self.http_port, self.grpc_port)

    async def _open_fronts(
        self, settings: ServerSettings, service: InferenceService, guard: Guard | None = None
    ) -> None:
        await super()._open_fronts(settings, service)
        for side, limits in LIMITS.items():
            token = make_token("secret", name=side, scope=("infer",), **limits)
            http_port, grpc_port = self.ports[side]
            ports = {"http_port": http_port, "grpc_port": grpc_port, "allow_metrics": False}
            own = from_args({"model_repository": ".", **ports})
            await super()._open_fronts(own, service, Guard(Grants([token]), None))


def cost(callers: Callers, protocol: str, connections: int) -> float:
    """Return the microseconds of CPU of an inference, over one slice."""
    begun = time.process_time()
    callers.send(protocol, ELEMENTS, REQUESTS)
    return (time.process_time() - begun) / (REQUESTS * connections) * 1e6


def bounded_median(values: list[float]) -> str:
    """Return the median, and the bounds of 95% that the ranks of the values give it."""
    ordered, half = sorted(values), len(values) / 2
    away = 0.98 * math.sqrt(len(values))  # 1.96 standard deviations of a binomial count with a chance of 1/2
    low, high = ordered[max(int(half - away), 0)], ordered[min(int(half + away), len(ordered) - 1)]
    return f"{statistics.median(ordered):.3f} ({low:.3f}-{high:.3f})"


def rows(sides: Sides, connections: int, slices: int) -> list[list[str]]:
    callers = {side: Callers(*ports, connections, "Bearer secret") for side, ports in sides.ports.items()}
    found = []
    for protocol in ("http", "grpc"):
        measured = []
        for turn in range(WARM_UP + slices):
            start = turn % len(callers)
            order = list(callers)[start:] + list(callers)[:start]
            measured.append({side: cost(callers[side], protocol, connections) for side in order})
        del measured[:WARM_UP]
        base = statistics.median(one[WITHOUT] for one in measured)
        ratios = [bounded_median([one[side] / one[WITHOUT] for one in measured]) for side in COMPARED]
        found.append([f"{protocol} x{connections}", f"{base:.1f}", *ratios])
    for one in callers.values():
        one.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--slices", type=int, default=200)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sides = Sides(Path(directory))
        try:
            found = [
                row
                for connections in arguments.connections
                for row in rows(sides, connections, arguments.slices)
            ]
        finally:
            sides.stop()
    print(table(["", "without, CPU us", *COMPARED], found))


if __name__ == "__main__":
    main()
