"""What watching for drift costs: the same load on a model with a reference and on one without, in turn.

    python -m benchmarks.drift

Two servers of one process each (`nereid dev`), of which one has a `drift.json`. Printed are the medians of
pairs: the rate with, over that without, and the server's processor time for a request.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median

import numpy as np

from app.core.drift.building import side
from app.core.drift.reference import Reference, encode_reference
from app.core.system.processes import stat_fields
from benchmarks.tools import ROOT
from tests.server import free_port

MODEL = "wine_forest"
START_S = 60.0


class Server:
    """A server of one process with the model."""

    def __init__(self, directory: Path, watched: bool) -> None:
        shutil.copytree(ROOT / "model_repository" / MODEL, directory / MODEL)
        if watched:
            rng = np.random.default_rng(0)
            inputs, _ = side({"input__0": [rng.normal(size=(10_000, 13))]}, time.time(), "random")
            outputs, _ = side({"output__0": [rng.dirichlet([1, 1, 1], 10_000)]}, time.time(), "random")
            (directory / MODEL / "drift.json").write_bytes(
                encode_reference(Reference(inputs, {"1": outputs}))
            )
        self.port = free_port()
        command = [sys.executable, "-m", "nereid", "dev", str(directory), f"--http-port={self.port}"]
        command += ["--allow-grpc=false", "--allow-metrics=false"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/models/{MODEL}/ready", timeout=1)
                return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError("the server did not start")

    def rate(self, load: list[str], seconds: float) -> tuple[float, float]:
        """Return requests a second, and the server's processor time for one in microseconds."""
        before = _cpu_seconds(self.process.pid)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [
                sys.executable,
                "-m",
                "nereid",
                "perf",
                "-m",
                MODEL,
                "-u",
                f"127.0.0.1:{self.port}",
                *load,
            ]
            command += ["--duration", str(seconds), "--warmup", "0.3", "--json", file.name]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            (level,) = json.loads(Path(file.name).read_text())["levels"]
        used = _cpu_seconds(self.process.pid) - before
        return level["rate"], 1e6 * used / max(level["requests"] * (1 + 0.3 / seconds), 1)

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process: the 14th and 15th fields of proc(5)."""
    return sum(map(int, stat_fields(pid)[12:14])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rate", type=int, help="requests a second of an open loop; by default a closed one")
    options = parser.parse_args()
    load = ["--rate", str(options.rate)] if options.rate else ["--concurrency", "8"]
    with tempfile.TemporaryDirectory() as directory:
        servers = [Server(Path(directory) / name, name == "watched") for name in ("watched", "plain")]
        try:
            pairs = [
                [server.rate(load, options.seconds) for server in servers[:: 1 if number % 2 else -1]][
                    :: 1 if number % 2 else -1
                ]
                for number in range(options.pairs)
            ]
        finally:
            for server in servers:
                server.close()
    for name, which in (("rate", 0), ("processor time for a request", 1)):
        ratios = sorted(watched[which] / plain[which] for watched, plain in pairs)
        means = [median(pair[side][which] for pair in pairs) for side in (0, 1)]
        print(f"{name}: {means[0]:,.1f} watched, {means[1]:,.1f} plain; ratio {median(ratios):.3f}", end=" ")
        print(f"({ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()
