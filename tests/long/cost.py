"""Whether what the server accounts for is what its processes consume, as seen from outside.

    python -m tests.long.cost                          ten minutes on Ray, then rates with and without
    python -m tests.long.cost --seconds 60 --dev       one process, one minute
    python -m tests.long.cost --only rate --rate-seconds 60

`account`: five models (rows, a model with two processes, one that calls another, an ensemble) and four
tokens, a reload and a SIGKILL. What is divided among tokens, idle and overhead must be within 2% of the
processor time of all processes, which this program reads from /proc itself; of two tokens that send as many
requests, the one with three times the rows must be charged 3.00 +- 0.09 times as much. `rate`: requests of
1, 8 and 32 connections with the account and without, on Ray: at least 0.99 of the rate.
"""

import argparse
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from prometheus_client.parser import text_string_to_metric_families

from app.core.cost.ledger import read_hours
from tests.long.cost_rate import rate
from tests.long.cost_servers import body, serving, write_models, write_tokens
from tests.server import Server

SETTLE_S: Final = 15.0
"""After the load until what was consumed is divided: reports come every few seconds."""
LOOK_S: Final = 0.25
MOST: Final = 0.02
RATIO: Final = 0.09


class Client:
    """Makes requests with a token over one connection."""

    def __init__(self, server: Server, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"}

    def post(self, path: str, body: str = "{}") -> int:
        """Return the status of the answer; 0 for none."""
        try:
            self._connection.request("POST", path, body, self._headers)
            answer = self._connection.getresponse()
            answer.read()
        except OSError:
            self._connection.close()
            return 0
        return answer.status

    def infer(self, model: str, rows: int) -> int:
        """Return the status of the answer to a request of some rows."""
        return self.post(f"/v2/models/{model}/infer", body(model, rows))


class Outside:
    """Adds up the processor time of a process and of all below it: the last seen of each that has ended."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self._seen: dict[psutil.Process, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """Return the sum of now."""
        self._look()
        return sum(list(self._seen.values()))

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for process in [self._root, *self._root.children(recursive=True)]:
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._seen[process] = times.user + times.system


def metrics(server: Server, token: str) -> dict[str, dict[str, float]]:
    """Return the sums of the families of costs, by the value of their first label."""
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=30)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
    text = connection.getresponse().read().decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("nereid_cost_"):
            sums = found.setdefault(family.name.removeprefix("nereid_cost_"), {})
            for sample in family.samples:
                name = next(iter(sample.labels.values()), "")
                sums[name] = sums.get(name, 0.0) + sample.value
    return found


def load(server: Server, secrets: Mapping[str, str], ending: threading.Event) -> list[Counter[str]]:
    """Make requests of all tokens until the end; return the numbers of answers by token and status."""
    counts: list[Counter[str]] = []

    def run(*courses: tuple[str, str, int]) -> None:
        mine: Counter[str] = Counter()
        counts.append(mine)
        clients = {token: Client(server, secrets[token]) for token, _, _ in courses}
        while not ending.is_set():
            for token, model, rows in courses:  # in turn: each as many as the others
                mine[f"{token} {clients[token].infer(model, rows)}"] += 1
                time.sleep(random.expovariate(1 / 0.02))

    courses = (
        [("three", "rows", 3), ("one", "rows", 1)],
        [("calls", "outer", 1), ("calls", "chain", 1)],
        [("two", "two", 2)],
    )
    threads = [threading.Thread(target=run, args=each) for each in courses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def disturb(server: Server, token: str, seconds: float, dev: bool) -> None:
    """Reload a model, and kill the process of another one."""
    time.sleep(seconds * 0.4)
    print("reload:", Client(server, token).post("/v2/repository/models/inner/load"), flush=True)
    time.sleep(seconds * 0.3)
    assert server.process is not None
    below = psutil.Process(server.process.pid).children(recursive=True)
    name = "two_0_" if dev else "nereid: model two:1"
    for process in below:
        with suppress(psutil.Error):
            if name in " ".join(process.cmdline()):
                os.kill(process.pid, signal.SIGKILL)
                print("killed:", process.pid, flush=True)
                return
    print("killed: nothing", flush=True)


def account(place: Path, seconds: float, dev: bool) -> bool:
    """Compare the account with what is seen from outside; return whether all holds."""
    secrets = write_tokens(place / "tokens")
    flags = (f"--auth-tokens-file={place / 'tokens'}", f"--cost-directory={place / 'cost'}")
    with serving(place, dev, *flags) as server:
        assert server.process is not None
        outside = Outside(server.process.pid)
        time.sleep(SETTLE_S)
        before, began = metrics(server, secrets["operator"]), outside.seconds()
        ending = threading.Event()
        threading.Timer(seconds, ending.set).start()
        operator = secrets["operator"]
        disturbing = threading.Thread(target=disturb, args=(server, operator, seconds, dev))
        disturbing.start()
        print("answers:", sum(load(server, secrets, ending), Counter()), flush=True)
        disturbing.join()
        time.sleep(SETTLE_S)
        after, seen = metrics(server, secrets["operator"]), outside.seconds() - began
        outside.end()
    used = {
        name: {key: value - before.get(name, {}).get(key, 0.0) for key, value in sums.items()}
        for name, sums in after.items()
    }
    return judged(used, seen) & reconciled(place / "cost")


def judged(used: Mapping[str, Mapping[str, float]], seen: float) -> bool:
    """Say what was accounted for, and whether that is what was seen from outside."""
    for name, sums in used.items():
        print(f"{name}: {json.dumps({key: round(value, 2) for key, value in sums.items()})}")
    parts = ("cpu_seconds", "idle_cpu_seconds", "overhead_cpu_seconds")
    accounted = sum(sum(used[name].values()) for name in parts)
    difference = accounted / seen - 1
    clients = used["token_cpu_seconds"]
    ratio = clients["three"] / clients["one"]
    good = abs(difference) <= MOST and abs(ratio - 3) <= RATIO
    print(f"accounted {accounted:.2f} s, outside {seen:.2f} s: {difference:+.2%} (at most {MOST:.0%})")
    print(f"three times the rows: {ratio:.3f} times the cost (3 +- {RATIO}): {'good' if good else 'BAD'}")
    return good


def reconciled(directory: Path) -> bool:
    """Say whether the ledger's parts are what it has measured."""
    sums: dict[str, float] = {}
    for hour in read_hours([directory]):
        for row in hour.rows:
            sums[row.kind] = sums.get(row.kind, 0.0) + row.cpu_seconds
    parts = sum(value for kind, value in sums.items() if kind != "measured")
    difference = parts / sums["measured"] - 1
    print(f"ledger {json.dumps({kind: round(value, 2) for kind, value in sums.items()})}: {difference:+.2%}")
    return abs(difference) <= MOST


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of load for the account (600)")
    parser.add_argument("--rate-seconds", type=float, default=240.0, help="of load for each rate (240)")
    parser.add_argument("--dev", action="store_true", help="servers of one process, without Ray")
    parser.add_argument("--only", choices=("account", "rate"), help="one of the two parts")
    given = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        write_models(place / "models")
        if given.only != "rate":
            good &= account(place, given.seconds, given.dev)
        if given.only != "account":
            good &= rate(place, given.rate_seconds)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
