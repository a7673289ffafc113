"""What tokens of clients cost a request: the same server behind fronts that ask for them, and that do not.

    python -m benchmarks.tokens [--rounds 12] [--connections 1,8]

All fronts are in one process and share its replica; wrk and h2load load them in turn, a second each, with the
same header. Printed are the CPU time of an inference without tokens, of ingress and replica together, and the
ratios to it: with a token without limits, and with one that has patterns, a rate and a number of inferences
in flight, which are never reached. Each is of the side's fastest round: whatever else runs on the machine
only adds to a round.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from app.access.grants import Grants
from app.access.tokens import make_token
from app.ingress.access.guard import Guard
from app.ingress.service.interface import InferenceService
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from benchmarks.load import h2load, wrk
from benchmarks.one_process import MODEL, OneProcess
from benchmarks.report import table
from benchmarks.servers import free_ports
from benchmarks.workloads import Workload

LIMITS: dict[str, dict[str, object]] = {
    "unlimited": {},
    "limited": {"rate": "999999999/s", "concurrency": 1000, "models": ("iden*",)},
}
"""Fields of a token, by side."""
WORKLOAD = Workload("identity", MODEL, {"INPUT0": np.zeros((1, 16), np.float32)}, ("OUTPUT0",))


class Sides(OneProcess):
    """The server with further fronts, one pair for each kind of token."""

    def __init__(self, directory: Path) -> None:
        ports = iter(free_ports(2 * len(LIMITS)))
        self.ports = {side: {"http": next(ports), "grpc": next(ports)} for side in LIMITS}
        super().__init__(directory)
        self.ports["without"] = {"http": self.http_port, "grpc": self.grpc_port}

    async def _open_fronts(
        self, settings: ServerSettings, service: InferenceService, guard: Guard | None = None
    ) -> None:
        await super()._open_fronts(settings, service)
        for side, limits in LIMITS.items():
            token = make_token("secret", name=side, scope=("infer",), **limits)
            flags = {f"{front}_port": port for front, port in self.ports[side].items()}
            own = from_args({"model_repository": ".", "allow_metrics": False, **flags})
            await super()._open_fronts(own, service, Guard(Grants([token]), None))


def costs(sides: Sides, protocol: str, connections: int, scratch: Path, turn: int) -> dict[str, float]:
    """Return microseconds of CPU an inference by side, one round."""
    tool = wrk if protocol == "http" else h2load
    found = {}
    order = list(sides.ports)
    for side in order[turn % len(order) :] + order[: turn % len(order)]:
        port = sides.ports[side][protocol]
        begun = time.process_time()
        result = tool(WORKLOAD, port, connections, 1.0, scratch, "Bearer secret")
        assert not result.errors, f"{side}: {result}"
        found[side] = (time.process_time() - begun) / result.requests * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--connections", default="1,8")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as scratch:
        sides = Sides(Path(directory))
        try:
            for protocol in ("http", "grpc"):
                for connections in map(int, arguments.connections.split(",")):
                    costs(sides, protocol, connections, Path(scratch), 0)
                    found = [
                        costs(sides, protocol, connections, Path(scratch), turn)
                        for turn in range(arguments.rounds)
                    ]
                    best = {side: min(one[side] for one in found) for side in sides.ports}
                    ratios = [f"{best[side] / best['without']:.3f}" for side in LIMITS]
                    rows.append([f"{protocol} x{connections}", f"{best['without']:.1f}", *ratios])
        finally:
            sides.stop()
    print(table(["", "without, CPU us", *LIMITS], rows))


if __name__ == "__main__":
    main()
