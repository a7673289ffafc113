"""What a server has counted of its requests while its parts are killed, and it is started again.

    python -m tests.long.restarts                    100,000 requests and as many labels: about 6 minutes
    python -m tests.long.restarts --requests 5000

Two ingresses record all requests of a model whose inputs have drifted. Clients then send a label for each,
in any order, a tenth twice, and as many again that no request has. Meanwhile the manager is killed, an
ingress is killed, and the server is started again. Drift: the alarm stays, and what was counted is there
but for the last half minute. Feedback: each record is counted in one place.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from deployments.drift.kept import KEEP_S
from tests.long.rollout_bench import ask
from tests.long.server import say
from tests.server import ROOT, Server, wait_until

CONFIG: Final = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 13 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 13 ] }
"""
PARTS: Final = {"ingress": "nereid:ingress", "manager": "nereid:repository-manager"}
RIGHT: Final = 0.8
"""Share of the labels that say that the model was right."""
_THREADS: Final = 6
_RECORDS: Final = 500
_JOINED_S: Final = 900.0


def model(repository: Path) -> None:
    """Write the model, and a reference that its inputs are far from."""
    folder = repository / "same"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "drift.yaml").write_text("rows_per_second: 10000\n")
    rows = np.random.default_rng(3).normal(size=(10_000, 13)).astype(np.float32)
    np.savez(repository.parent / "reference.npz", INPUT0=rows)
    command = [sys.executable, "-m", "nereid", "drift", "reference", "same"]
    places = ["--from", str(repository.parent / "reference.npz"), "--repository", str(repository)]
    subprocess.run([*command, *places], cwd=ROOT, check=True)


def row(number: int) -> list[float]:
    """Return the input of a request: larger than the reference, and greatest in one place, its label."""
    found = np.random.default_rng(abs(number)).normal(size=13) + 1.0
    found[number % 13] = 9.0
    return [round(float(each), 4) for each in found]


def send(server: Server, numbers: Iterable[int]) -> int:
    """Send requests over one connection; return how many failed."""
    connection, failed = http.client.HTTPConnection(server.http_url, timeout=60), 0
    for number in numbers:
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [13], "data": row(number)}
        connection.request(
            "POST", "/v2/models/same/infer", json.dumps({"id": f"r{number}", "inputs": [tensor]})
        )
        response = connection.getresponse()
        failed += response.status != 200
        response.read()
    connection.close()
    return failed


def tell(server: Server, records: Sequence[dict[str, Any]]) -> int:
    """Send feedback over a connection of its own until it is accepted; return how many records were."""
    body = json.dumps({"feedback": records})
    while True:
        connection = http.client.HTTPConnection(server.http_url, timeout=120)
        connection.request("POST", "/v2/models/same/feedback", body)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status == 200:
            return int(json.loads(text)["accepted"])
        assert response.status == 503, text
        time.sleep(float(response.headers["Retry-After"]))


def labels(requests: int) -> Iterator[dict[str, Any]]:
    """Yield the label of each request, a tenth of them again, and a tenth of no request."""
    for number in range(requests):
        right = number % 10 < 10 * RIGHT
        yield {"id": f"r{number}", "label": number % 13 if right else (number + 1) % 13}
        if number % 10 == 0:
            yield {"id": f"r{number}", "label": number % 13}
            yield {"id": f"unknown{number}", "label": 1}


def kill(server: Server, part: str) -> None:
    """Kill a process of a part of the server; return when there is another."""
    title = PARTS[part]
    before = server.replicas(title)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: len({*server.replicas(title)} - {*before}) > 0, 90, f"another {part}")
    wait_until(lambda: server.model_ready("same"), 90, "the model is ready again")


def drift(server: Server) -> dict[str, Any]:
    """Return the drift of the model, once there is an answer."""
    found: dict[str, Any] = {}

    def answered() -> bool:
        found.update(ask(server, "models/same/drift"))
        return "rows" in found

    wait_until(answered, 90, "drift is told")
    return found


def went_on(server: Server, before: dict[str, Any], what: str) -> list[str]:
    """Return what is wrong with the drift that is told after something, which was told before."""
    after = drift(server)
    say(f"drift after {what}: {after['rows']} rows of {before['rows']}, alarm {after.get('since', 0)}")
    if after.get("since", 0) != before["since"] or after["rows"] < before["rows"]:
        return [f"drift after {what}: {after['rows']} rows, alarm {after.get('since', 0)}"]
    return []


def told(server: Server) -> dict[str, Any]:
    """Return the figures of feedback, once nothing waits."""
    found: dict[str, Any] = {}

    def joined() -> bool:
        found.update(ask(server, "models/same/feedback"))
        return found.get("waiting") == 0

    wait_until(joined, _JOINED_S, "all records are joined")
    return found


def run(server: Server, requests: int) -> list[str]:
    """Return what is wrong."""
    wait_until(lambda: bool(send(server, [-1])) or drift(server)["rows"] > 0, 60, "requests are counted")
    with ThreadPoolExecutor(_THREADS) as pool:
        failed = sum(pool.map(lambda at: send(server, range(at, requests, _THREADS)), range(_THREADS)))
    wait_until(lambda: bool(drift(server).get("since")), 60, "the alarm")
    time.sleep(KEEP_S + 15)  # until all is kept
    before = drift(server)
    say(f"{requests} requests, {failed} failed; drift: {before['rows']} rows, alarm {before['since']}")
    kill(server, "manager")
    wrong = went_on(server, before, "a kill of the manager")
    records = [*labels(requests)]
    random.Random(1).shuffle(records)
    third = len(records) // 3
    accepted = _tell_all(server, records[:third])
    kill(server, "ingress")
    accepted += _tell_all(server, records[third : 2 * third])
    server.stop()
    server.start()
    wrong += went_on(server, before, "another start of the server")
    accepted += _tell_all(server, records[2 * third :])
    tenth = len(range(0, requests, 10))
    figures = told(server)
    say(f"{accepted} records of {len(records)} accepted: {figures}")
    (version,) = figures["versions"]
    expected = (accepted, tenth, tenth, requests)
    counted = (figures["received"], figures["again"], figures["unknown"], version["scored"])
    if counted != expected or figures["unusable"]:
        wrong.append(f"received, again, unknown, scored: {counted} and not {expected}")
    return wrong + ([f"{failed} requests failed"] if failed else [])


def _tell_all(server: Server, records: Sequence[dict[str, Any]]) -> int:
    parts = [records[at : at + _RECORDS] for at in range(0, len(records), _RECORDS)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return sum(pool.map(lambda part: tell(server, part), parts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # who ends this ends the server too
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        model(place / "models")
        tape = (f"--tape={place / 'tape'}", "--tape-rate=1", "--tape-rate-limit=0")
        flags = [f"--model-repository={place / 'models'}", "--ingress-replicas=2", *tape]
        server = Server(flags, place / "server.log", {"TMPDIR": directory}).start()
        try:
            wrong = run(server, options.requests)
        finally:
            server.stop()
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
