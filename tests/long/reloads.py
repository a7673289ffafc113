"""Measures what a reload costs: private memory that each process of the server keeps, and seconds.

python -m tests.long.reloads

A Python model of a few lines is written anew and loaded again, RELOADS times after a warm-up. What a process
keeps of each reload it keeps for ever, so a server whose models are reloaded for months grows by it.
"""

import argparse
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from tests.long.processes import Snapshot, snapshot
from tests.server import Server, wait_until

MODEL: Final = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
CONFIG: Final = """
backend: "python"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
"""
SETTLE_S: Final = 12.0
"""For what ends with a delay: Serve's bookkeeping, reports of metrics."""


def write(repository: Path, content: int) -> None:
    """Write the model with other content than before."""
    directory = repository / "m"
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(CONFIG)
    (directory / "1" / "model.py").write_text(f"{MODEL}\nNUMBER = {content}\n")


def reload(server: Server, repository: Path, content: int) -> float:
    """Load the model anew and wait until one replica is left; return the seconds of the load."""
    write(repository, content)
    address = f"http://{server.http_url}/v2/repository/models/m/load"
    started = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(address, b"{}", method="POST"), timeout=120) as answer:
        answer.read()
    seconds = time.monotonic() - started
    wait_until(lambda: len(server.replicas("m:")) == 1, 120, "the replica before is gone")
    return seconds


def kept(before: Snapshot, after: Snapshot, reloads: int) -> Iterator[tuple[str, float]]:
    """The role of each process that lives on, with the MiB that it keeps of a reload."""
    for pid, now in after.readings.items():
        if pid in before.readings:
            yield now.role, (now.uss - before.readings[pid].uss) / reloads


def run(reloads: int, warm_up: int, limit: float) -> bool:
    """Reload, and print what was kept; return whether that is at most `limit` MiB a reload."""
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as directory:
        repository = Path(directory, "models")
        write(repository, 0)
        arguments = [f"--model-repository={repository}", "--model-control-mode=explicit", "--load-model=m"]
        server = Server(arguments, Path(directory, "server.log"), {"TMPDIR": directory}).start()
        try:
            assert server.process is not None
            root = psutil.Process(server.process.pid)
            for number in range(warm_up):
                reload(server, repository, number + 1)
            time.sleep(SETTLE_S)
            before = snapshot(root)
            took = [reload(server, repository, warm_up + number + 1) for number in range(reloads)]
            time.sleep(SETTLE_S)
            after = snapshot(root)
        finally:
            server.stop()
    rows = sorted(kept(before, after, reloads), key=lambda row: -row[1])
    for role, mib in rows:
        print(f"{role[:40]:40} {mib:7.3f} MiB a reload")
    total = sum(mib for _, mib in rows)
    print(f"{'all':40} {total:7.3f} MiB a reload; {sum(took) / len(took):.2f} s each")
    return total <= limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reloads", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--limit", type=float, default=0.2, help="MiB a reload, all processes together")
    arguments = parser.parse_args()
    sys.exit(not run(arguments.reloads, arguments.warm_up, arguments.limit))


if __name__ == "__main__":
    main()
