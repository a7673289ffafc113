"""A network on a GPU, asked over `nereid dev`'s fronts, beside the bare loop of PyTorch on the same GPU.

python -m benchmarks.gpu_server [--seconds 2] [--rows 1 8] [--in-flight 1 4]

The network is the TorchScript one of benchmarks/backend_rows/cuda.py, with one instance. The bare loop has
its input and its result in the host's memory, as the server has them; it runs before and after the others.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import results
from benchmarks.backend_rows import cuda
from benchmarks.backends import seconds_each
from benchmarks.report import table
from nereid_client.tools.perf.command.run import main as perf

Line = list[str]

HEADER: Final = ["rows", "asked by", "in flight", "p50 us", "rows a second", "of the bare loop's"]
START_S: Final = 60.0


@contextlib.contextmanager
def serving(repository: Path) -> Iterator[dict[str, int]]:
    """Start `nereid dev` and wait until it is ready; returns the port of each front."""
    with contextlib.ExitStack() as stack:
        sockets = {name: stack.enter_context(socket.socket()) for name in ("http", "grpc", "metrics")}
        for each in sockets.values():
            each.bind(("127.0.0.1", 0))
        ports = {name: each.getsockname()[1] for name, each in sockets.items()}
    words = ["nereid", "dev", str(repository), "--model-control-mode=none", "--allow-client-shm=true"]
    words += [f"--{name}-port={port}" for name, port in ports.items()]
    with subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL) as process:
        try:
            _wait(f"http://127.0.0.1:{ports['http']}/v2/health/ready", process)
            yield ports
        finally:
            process.terminate()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError("the server did not start")


def asked(url: str, rows: int, in_flight: int, seconds: float, memory: str) -> Any:
    """Return what `nereid perf` measured."""
    words = ["-m", "m", "-u", url, "-b", rows, "--concurrency", in_flight, "--duration", seconds]
    words += ["--shared-memory", memory, "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert perf([str(word) for word in words]) == 0
    return json.loads(text.getvalue())["levels"][0]


def measure(rows: int, levels: list[int], seconds: float) -> list[Line]:
    """Return the lines of a batch."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "m"
        model.mkdir()
        backend, bare = cuda.of_script(model, rows)
        (model / "config.pbtxt").write_text(cuda.CONFIG.format(backend="pytorch", extra=""))
        for call in (backend, bare):
            seconds_each(call, 1)
        bares = [seconds_each(bare, seconds)]
        found = [("the backend alone", 1, seconds_each(backend, seconds), 0.0)]
        with serving(Path(folder)) as ports:
            for protocol in ("http", "grpc"):
                for memory in ("none", "system", "cuda"):
                    for in_flight in levels:
                        url = f"{protocol}://127.0.0.1:{ports[protocol]}"
                        level = asked(url, rows, in_flight, seconds, memory)
                        p50 = level["latency"]["percentiles"]["p50"] / 1e3
                        found.append((f"{protocol}, {memory}", in_flight, p50, level["rate"]))
        bares.append(seconds_each(bare, seconds))
    best = rows / min(bares)
    lines = [[str(rows), "the bare loop", "1", _span(bares), f"{best:,.0f}", "1.00"]]
    for name, in_flight, p50, rate in found:
        each = rows * (rate or 1 / p50)
        lines.append(
            [str(rows), name, str(in_flight), f"{p50 * 1e6:.0f}", f"{each:,.0f}", f"{each / best:.2f}"]
        )
    return lines


def _span(times: list[float]) -> str:
    return " to ".join(f"{each * 1e6:.0f}" for each in sorted(times))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2, help="for each line")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 4])
    results.add_flag(parser)
    arguments = parser.parse_args()
    with results.recorded("gpu_server", arguments.record):
        each = (measure(rows, arguments.in_flight, arguments.seconds) for rows in arguments.rows)
        print(table(HEADER, [line for lines in each for line in lines]))


if __name__ == "__main__":
    main()
