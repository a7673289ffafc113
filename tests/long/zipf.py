"""Many models in little memory: `--model-memory-bytes` under requests whose models follow Zipf's law.

python -m tests.long.zipf --registered=1000 --resident=50 --minutes=10

Identity models are registered, of which so many fit into memory together. Clients send one request after the
other, each for a model drawn by Zipf's law. Prints a row every ten seconds; fails if any request does, or if
the replicas of models have more than the budget and 5 %, as the server says and as measured from outside.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import psutil
import tritonclient.http

from tests.long.plants import PLANTS, planted
from tests.server import Server

CONFIG: Final = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
"""
EXCESS: Final = 1.05
"""Bytes to the budget that are tolerated: a model's memory is known only after its load."""
_ROW_S: Final = 10.0
_POLL_S: Final = 5
_POLLS: Final = 4
_COLUMNS: Final = (
    "seconds requests errors per_s p50_ms p99_ms resident server_mib measured_mib loads evicted age_s"
)


class Row(NamedTuple):
    """What is known at a moment; bytes are those of all replicas of models."""

    resident: int
    server_bytes: int
    measured_bytes: int
    demands: int
    evictions: int
    age_s: float


class Clients:
    """Threads that each send one request after the other.

    Attributes:
        latencies: seconds of the answers since they were taken last.
        errors: what was answered otherwise.
    """

    def __init__(self, server: Server, models: int, exponent: float) -> None:
        self._server = server
        self._names = [f"m{number:04}" for number in range(models)]
        self._weights = list(accumulate((rank + 1) ** -exponent for rank in range(models)))
        self._stopping = threading.Event()
        self.latencies: list[float] = []
        self.sent = 0
        self.errors: list[str] = []

    def run(self, seed: int) -> None:
        """Send until `stop`."""
        draw = random.Random(seed)
        tensor = tritonclient.http.InferInput("INPUT0", [4], "FP32")
        tensor.set_data_from_numpy(np.arange(4, dtype=np.float32))
        with tritonclient.http.InferenceServerClient(self._server.http_url, network_timeout=200) as client:
            while not self._stopping.is_set():
                (model,) = draw.choices(self._names, cum_weights=self._weights)
                started = time.monotonic()
                try:
                    answer = client.infer(model, [tensor]).as_numpy("OUTPUT0")
                    if answer is None or answer.tolist() != [0, 1, 2, 3]:
                        self.errors.append(f"{model}: wrong answer {answer}")
                except Exception as error:
                    self.errors.append(f"{model}: {error}")
                self.latencies.append(time.monotonic() - started)

    def stop(self) -> None:
        """End all threads after their request."""
        self._stopping.set()

    def taken(self) -> list[float]:
        """Return the latencies since the last call, ascending."""
        taken, self.latencies = self.latencies, []
        self.sent += len(taken)
        return sorted(taken)


def write(repository: Path, models: int) -> None:
    """Write identity models."""
    for number in range(models):
        directory = repository / f"m{number:04}"
        (directory / "1").mkdir(parents=True)
        (directory / "config.pbtxt").write_text(CONFIG)


def measured(server: Server) -> int:
    """Return the memory of all replicas of models."""
    found = 0
    for pid in set(server.replicas("")) - set(server.replicas("nereid:")):
        try:
            found += psutil.Process(pid).memory_full_info().pss
        except psutil.Error:  # it has ended
            continue
    return found


def reading(server: Server) -> Row:
    """Ask the server, and the kernel."""
    _, page = server.get("/metrics", timeout=30, port=server.metrics_port)
    rows = (line.rpartition(" ") for line in page.decode().splitlines() if not line.startswith("#"))
    found = {name: float(value) for name, _, value in rows}
    return Row(
        int(found["nereid_models_resident"]),
        int(found["nereid_model_memory_bytes"]),
        measured(server),
        int(found["nereid_model_demands"]),
        int(found["nereid_model_evictions"]),
        found.get("nereid_model_evicted_age_seconds", 0.0),
    )


def poll_cost(server: Server) -> float:
    """Return the processor seconds of the manager for each poll of the repository, nothing else going on."""
    (manager,) = (psutil.Process(pid) for pid in server.replicas("nereid:repository-manager"))

    def spent() -> float:
        times = manager.cpu_times()
        return float(times.user + times.system)

    before = spent()
    time.sleep(_POLLS * _POLL_S)
    return (spent() - before) / _POLLS


def observe(server: Server, clients: Clients, seconds: float) -> Iterator[Row]:
    """Print a row every few seconds; yield what it was made of."""
    print(_COLUMNS)
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        time.sleep(min(_ROW_S, seconds - passed))
        row, taken = reading(server), clients.taken()
        quantiles = [
            f"{1000 * taken[int(share * len(taken))]:.1f}" if taken else "-" for share in (0.5, 0.99)
        ]
        mib = [nbytes >> 20 for nbytes in (row.server_bytes, row.measured_bytes)]
        cells = [clients.sent, len(clients.errors), len(taken) // _ROW_S, *quantiles, row.resident, *mib]
        cells += [row.demands, row.evictions, f"{row.age_s:.0f}"]
        print(f"{time.monotonic() - begun:.0f}", *cells, flush=True)
        yield row


def faults(rows: list[Row], errors: list[str], budget: int) -> Iterator[str]:
    """Say what is not as it should be."""
    yield from errors[:10]
    for name in ("server_bytes", "measured_bytes"):
        most = max(getattr(row, name) for row in rows)
        if most > EXCESS * budget:
            yield f"{name}: {most} is more than the budget of {budget} and 5 %"
    if not rows[-1].demands:
        yield "no model was loaded for a request"
    if not rows[-1].evictions:
        yield "no model was evicted"


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--registered", type=int, default=1000)
    parser.add_argument("--resident", type=int, default=50, help="models that fit into memory")
    parser.add_argument("--replica-mib", type=int, default=95, help="memory of a replica")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--exponent", type=float, default=1.1, help="of Zipf's law")
    parser.add_argument("--plant", default="", choices=list(PLANTS), help="a fault that is to be found")
    given = parser.parse_args()
    budget = (given.resident * given.replica_mib) << 20
    with (
        tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as private,
        planted(given.plant) as (root, env),
    ):
        repository = Path(private, "models")
        write(repository, given.registered)
        arguments = (
            f"--model-repository={repository}",
            f"--model-memory-bytes={budget}",
            "--model-control-mode=poll",
            f"--repository-poll-secs={_POLL_S}",
        )
        started = time.monotonic()
        server = Server(arguments, Path(private, "server.log"), {"TMPDIR": private, **env})
        server.directory = root
        server.start()
        try:
            print(f"ready after {time.monotonic() - started:.1f} s with {given.registered} models registered")
            print(f"a poll of the repository takes {1000 * poll_cost(server):.0f} ms of processor time")
            return judge(server, budget, given)
        finally:
            server.stop()


def judge(server: Server, budget: int, given: argparse.Namespace) -> int:
    """Send requests for the time given; return the exit status."""
    clients = Clients(server, given.registered, given.exponent)
    with ThreadPoolExecutor(given.clients) as pool:
        running = [pool.submit(clients.run, seed) for seed in range(given.clients)]
        try:
            rows = list(observe(server, clients, 60 * given.minutes))
        finally:
            clients.stop()
    for thread in running:
        thread.result()
    found = list(faults(rows, clients.errors, budget))
    print(*found or ["no errors, and no more memory than was given"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
