"""Measures scaling by load: minutes of constant load, a step of ten times that, no replica while idle.

python -m tests.long.scaling

Fails where the first replica is asked for later than two seconds after the step, where constant load changes
the number of replicas, or where a request fails.
"""

import argparse
import http.client
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.cluster.load import VALUES
from tests.long.plants import PLANTS, planted
from tests.server import Server, wait_until

CONFIG: Final = """
backend: "identity"
max_batch_size: 1
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "20" }} }}
{parameters}
"""
HEADER: Final = (
    b'{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","parameters":{"binary_data_size":64}}],'
    b'"parameters":{"binary_data_output":true}}'
)
ASKED_S: Final = 2.0
"""The longest time from a step of ten times the load to the first replica that is asked for."""


def write(repository: Path, name: str, **parameters: str) -> None:
    """Write a model that executes 50 requests a second in each replica."""
    (repository / name / "1").mkdir(parents=True)
    text = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}'
    more = "\n".join(text.format(*each) for each in parameters.items())
    (repository / name / "config.pbtxt").write_text(CONFIG.format(parameters=more))


class Requests:
    """Sends requests at random times, so many a second on average, whether or not they are answered."""

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._path = server, f"/v2/models/{model}/infer"
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(128)
        self._local = threading.local()
        self.rate = 1.0
        self.answered = 0
        self.failures: list[str] = []

    @contextmanager
    def sent(self, rate: float) -> Iterator["Requests"]:
        """Send requests meanwhile."""
        self.rate = rate
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
            self._threads.shutdown()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            due += random.expovariate(self.rate)
            time.sleep(max(0.0, due - time.monotonic()))
            self._threads.submit(self.ask)

    def ask(self) -> None:
        """Send a request and check the answer."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._server.http_port, timeout=60)
            self._local.connection = connection
        headers = {"Inference-Header-Content-Length": str(len(HEADER))}
        try:
            connection.request("POST", self._path, HEADER + VALUES.tobytes(), headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.failures.append(repr(error))
            return
        if response.status == 200 and body.endswith(VALUES.tobytes()):
            self.answered += 1
        else:
            self.failures.append(f"{response.status} {body[:200]!r}")


def changes(server: Server, model: str) -> list[str]:
    """The lines of the log on changes of a model."""
    return [line for line in server.output().splitlines() if f"scaling '{model}'" in line]


def measure_load(server: Server, minutes: float) -> list[str]:
    """Constant load, then a step; return what is wrong."""
    wrong = []
    requests = Requests(server, "stepped")
    with requests.sent(15.0):
        time.sleep(60 * minutes)
        constant = changes(server, "stepped")
        print(f"constant load: {len(constant)} changes in {minutes:g} minutes, {requests.answered} requests")
        wrong += constant
        requests.rate = 150.0
        asked = wait_until(
            lambda: len(changes(server, "stepped")) > len(constant), 30, "a replica is asked for"
        )
        print(f"step of 10 times the load: first replica asked for after {asked:.2f} s")
        served = wait_until(lambda: len(server.replicas("stepped:1")) > 1, 60, "it is started")
        print(f"                           started after {asked + served:.2f} s")
        time.sleep(20)
    print("\n".join(changes(server, "stepped")))
    print(f"{requests.answered} answered, {len(requests.failures)} failed")
    if asked > ASKED_S:
        wrong.append(f"the first replica was asked for after {asked:.2f} s")
    return wrong + requests.failures[:5]


def measure_idle(server: Server) -> list[str]:
    """Going to no replica, and back by a request; return what is wrong."""
    requests = Requests(server, "napping")
    for _ in range(3):
        ended = wait_until(lambda: not server.replicas("napping:1"), 60, "its replica ends")
        ready = server.model_ready("napping")
        started = time.monotonic()
        requests.ask()
        print(f"idle: ended after {ended:.1f} s more; a request waited {time.monotonic() - started:.2f} s")
        if not ready:
            requests.failures.append("it was not ready without a replica")
    return requests.failures


def run(minutes: float, plant: str) -> list[str]:
    """Measure all, perhaps with a fault; return what is wrong."""
    with (
        tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as directory,
        planted(plant) as (root, env),
    ):
        repository = Path(directory, "models")
        write(repository, "stepped", max_replicas="4", max_queue_ms="200")
        write(repository, "napping", max_replicas="2", min_replicas="0", idle_seconds="3")
        arguments = [f"--model-repository={repository}"]
        server = Server(arguments, Path(directory, "server.log"), {"TMPDIR": directory, **env})
        server.directory = root
        server.start()
        try:
            return measure_load(server, minutes) + measure_idle(server)
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="of constant load")
    parser.add_argument("--plant", default="", choices=list(PLANTS), help="a fault that is to be found")
    given = parser.parse_args()
    wrong = run(given.minutes, given.plant)
    print("\n".join(wrong) or "all as it should be")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
