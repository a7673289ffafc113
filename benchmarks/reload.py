"""Measures the cost of one model's reloads for another: its p50 and p99 with and without them.

python -m benchmarks.reload

Models A and B get 100 and 20 requests a second. B is loaded anew, again and again, each time with other
weights; after each block of reloads comes as long a time without, and one in which a process that has
nothing to do with the server keeps a core busy: what any work costs where there are few cores. A latency
counts from the moment its request was due, so that a server that stands still is charged for every request it
kept waiting.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from benchmarks.servers import Command, Server, nereid, running, url

CONFIG = """
backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
"""
BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": [0.0] * 16}]}
).encode()
RATES = {"a": 25.0, "b": 10.0}
"""Requests a second of each caller."""
CALLERS = {"a": 4, "b": 2}


class Answer(NamedTuple):
    """Time at which a request was due (`time.monotonic`), and its latency from then on."""

    due: float
    seconds: float


class Caller(threading.Thread):
    """Sends a request to a model whenever one is due, on one connection."""

    def __init__(self, port: int, model: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.answers: list[Answer] = []
        self.failures: list[str] = []
        self._port = port
        self._path = f"/v2/models/{model}/infer"
        self._period = 1 / RATES[model]
        self._stop_event = stop

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        due = time.monotonic()
        while not self._stop_event.is_set():
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                connection.request("POST", self._path, BODY)
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            else:
                self.answers.append(Answer(due, time.monotonic() - due))
                if response.status != 200:
                    self.failures.append(f"{response.status} {text[:200]!r}")
            due += self._period


class Phase(NamedTuple):
    """Period of one of `KINDS`."""

    kind: str
    start: float
    end: float


KINDS = ("idle", "burning", "reloading")
BURN = "while True: pass"


def percentile(seconds: list[float], share: float) -> float:
    """Return a percentile in ms; nan without latencies."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def reload(server: Server, repository: Path, content: int) -> None:
    """Load model B with other weights than before; returns when every ingress routes to it."""
    (repository / "b" / "1" / "weights").write_text(str(content))
    request = urllib.request.Request(
        url(server.command.http_port, "/v2/repository/models/b/load"), b"{}", method="POST"
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        response.read()


def alternate(server: Server, repository: Path, reloads: int, blocks: int) -> list[Phase]:
    """Run blocks of reloads, each followed by as long a time without, idle and beside a busy process."""
    phases = []
    done = 0
    for block in range(blocks):
        start = time.monotonic()
        for _ in range(reloads // blocks + (block < reloads % blocks)):
            done += 1
            reload(server, repository, done)
        end = time.monotonic()
        time.sleep(2)  # what was replaced is still being taken down
        phases.append(Phase("reloading", start, time.monotonic()))
        phases.append(pause("idle", end - start))
        with subprocess.Popen([sys.executable, "-c", BURN]) as burner:
            phases.append(pause("burning", end - start))
            burner.kill()
    return phases


def pause(kind: str, seconds: float) -> Phase:
    start = time.monotonic()
    time.sleep(seconds)
    return Phase(kind, start, time.monotonic())


def latencies(callers: list[Caller], phases: list[Phase], kind: str) -> list[float]:
    spans = [(phase.start, phase.end) for phase in phases if phase.kind == kind]
    answers = [answer for caller in callers for answer in caller.answers]
    return [a.seconds for a in answers if any(start <= a.due < end for start, end in spans)]


def report(callers: dict[str, list[Caller]], phases: list[Phase]) -> None:
    """Print percentiles of both models in each kind of phase, in ms, and how reloading compares."""
    for model, same in callers.items():
        found = {kind: latencies(same, phases, kind) for kind in KINDS}
        failures = [failure for caller in same for failure in caller.failures]
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            at = {kind: percentile(seconds, share) for kind, seconds in found.items()}
            figures = "  ".join(f"{kind} {ms:7.2f}" for kind, ms in at.items())
            ratios = ", ".join(f"{at['reloading'] / at[kind]:.2f} of {kind}" for kind in KINDS[:2])
            print(f"{model}  {name}  {figures}  ratio {ratios}")
        count = " + ".join(str(len(seconds)) for seconds in found.values())
        print(f"{model}  {count} answers, {len(failures)} failures {failures[:3] or ''}")


def command(repository: Path, scratch: Path) -> Command:
    made = nereid(repository, scratch, Path(sys.executable).parent / "nereid")
    modes = ("--model-control-mode=explicit", "--load-model=a", "--load-model=b")
    arguments = [sys.executable, "-m", "nereid", *made.arguments[1:-1], *modes]
    return Command(made.name, arguments, made.http_port, made.grpc_port, made.freezable, made.env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--reloads", type=int, default=50)
    parser.add_argument("--blocks", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as directory:
        repository = Path(directory, "models")
        for model in RATES:
            (repository / model / "1").mkdir(parents=True)
            (repository / model / "config.pbtxt").write_text(CONFIG)
        with running(command(repository, Path(directory)), Path(directory)) as server:
            stop = threading.Event()
            port = server.command.http_port
            callers = {
                model: [Caller(port, model, stop) for _ in range(count)] for model, count in CALLERS.items()
            }
            every = [caller for same in callers.values() for caller in same]
            for caller in every:
                caller.start()
            time.sleep(2)
            phases = alternate(server, repository, arguments.reloads, arguments.blocks)
            stop.set()
            for caller in every:
                caller.join()
    report(callers, phases)
    spent = sum(phase.end - phase.start for phase in phases if phase.kind == "reloading")
    print(f"{arguments.reloads} reloads, {spent / arguments.reloads:.2f} s each")


if __name__ == "__main__":
    main()
