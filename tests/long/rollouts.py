"""Rolls out candidates that are bad in different ways under load, and prints what clients saw of each.

For every candidate: how the rollout ended and after how many seconds and requests, the errors and wrong
answers that clients saw, and the stable version's p99 while the candidate was there beside that without it.
Ends with 1 if a bad candidate was not rolled back within two windows, a client saw an error, or the good one
was not promoted.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import tritonclient.grpc

from tests.long.client import tensors
from tests.long.client_threads import ClientThreads
from tests.long.server import say
from tests.server import Server

CONFIG: Final = """
backend: "python" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
"""
SOURCE: Final = """
import os, random, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        time.sleep(0.002)
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy()) for r in requests]

    def answer(self, values):
        {answer}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)])
"""
WINDOW_S: Final = 10.0
POLICY: Final[dict[str, Any]] = {
    "steps": [20],
    "step": {"min_seconds": WINDOW_S, "min_requests": 300, "max_seconds": 60},
    "keep_stable_seconds": 2,
}
_MIRRORED: Final = {"mirror": 50, "judge": {"output": {"max_difference": 0.01}}}
CANDIDATES: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "raises": ("pass", "raise ValueError('no')", {}),
    "fails 10 %": ("pass", "assert random.random() > 0.1", {}),
    "is slow": ("pass", "time.sleep(0.03)", {}),
    "gives NaN": ("pass", "values = values * np.nan", _MIRRORED),
    "crashes": ("pass", "os._exit(1)", {}),
    "hangs": ("pass", "time.sleep(3600)", {}),
    "does not load": ("raise ValueError('no weights')", "pass", {}),
    "wrong shape, 5 %": ("pass", "values = values[:, :8] if random.random() < 0.05 else values", {}),
    "is good": ("pass", "pass", {}),
}
"""Of each candidate: a statement of its load, one of each request, and more of the policy."""
_CLIENTS: Final = 4
_DEADLINE_S: Final = 4.0
"""After half of it a request to a candidate that hangs is repeated."""
_END_S: Final = 90.0
_OVER: Final = ("done", "failed", "aborted", "paused")


class Event(NamedTuple):
    """A request: when it ended and how long it took, in seconds, by which version, and how it went."""

    at: float
    took: float
    version: str
    result: str


class Load(ClientThreads):
    """Clients that ask the model without a version, and check every answer."""

    def __init__(self, server: Server) -> None:
        self._url = server.grpc_url
        self.events: list[Event] = []
        super().__init__([partial(self._run, number) for number in range(_CLIENTS)], 10)

    def _run(self, seed: int) -> None:
        client = tritonclient.grpc.InferenceServerClient(self._url)
        values = np.random.default_rng(seed).random((1, 16), np.float32)
        while not self.stop.is_set():
            begun, version = time.monotonic(), ""
            try:
                inputs = tensors(tritonclient.grpc, {"INPUT0": values})
                found = client.infer("m", inputs, client_timeout=_DEADLINE_S)
                version = found.get_response().model_version
                result = "ok" if np.array_equal(found.as_numpy("OUTPUT0"), values) else "wrong"
            except Exception as error:
                result = str(error) or repr(error)
            ended = time.monotonic()
            self.events.append(Event(ended, ended - begun, version, result))
            self.stop.wait(0.005)

    def between(self, begun: float, ended: float) -> list[Event]:
        """Return the requests that ended in a time."""
        return [event for event in list(self.events) if begun <= event.at < ended]


class Row(NamedTuple):
    """What became of one candidate."""

    candidate: str
    state: str
    seconds: float
    asked: int
    errors: int
    wrong: int
    before_ms: float
    during_ms: float
    reason: str

    @property
    def good(self) -> bool:
        """Whether it ended as it should, and clients saw nothing of it."""
        expected = "done" if self.candidate == "is good" else "failed"
        in_time = expected == "done" or self.seconds <= 2 * WINDOW_S
        return self.state == expected and in_time and not self.errors

    def line(self) -> str:
        """Return the row as a line of a Markdown table."""
        cells = (
            *(self.candidate, self.state, f"{self.seconds:.1f}", self.asked, self.errors, self.wrong),
            *(f"{self.before_ms:.1f}", f"{self.during_ms:.1f}", self.reason.splitlines()[0][:120]),
        )
        return f"| {' | '.join(map(str, cells))} |"


HEADER: Final = """\
| candidate | ended | s | asked | errors | wrong | p99 without ms | p99 beside ms | why |
|---|---|---|---|---|---|---|---|---|"""


def write(repository: Path, version: int, initialize: str = "pass", answer: str = "pass") -> None:
    """Write a version of the model."""
    directory = repository / "m" / str(version)
    directory.mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(CONFIG)
    (directory / "model.py").write_text(SOURCE.format(initialize=initialize, answer=answer))


def ask(server: Server, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Call the API; an error is its answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http_url}/v2/{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            found: dict[str, Any] = json.loads(response.read())
    except urllib.error.HTTPError as error:
        found = json.loads(error.read())
    return found


def p99_ms(events: list[Event], stable: int) -> float:
    """Return the 99 % quantile of the stable version's answers."""
    took = [event.took * 1000 for event in events if event.version == str(stable)]
    return float(np.quantile(took, 0.99)) if took else float("nan")


def roll_out(server: Server, load: Load, repository: Path, name: str, version: int) -> Row:
    """Roll one candidate out; return how that went."""
    initialize, answer, more = CANDIDATES[name]
    stable = ask(server, "models/m")["versions"][-1]
    quiet = time.monotonic()
    time.sleep(5)
    write(repository, version, initialize, answer)
    ask(server, "repository/models/m/rollout", {"action": "start", "spec": {**POLICY, **more}})
    status = ask(server, "models/m/rollout")
    started = status["history"][min(1, len(status["history"]) - 1)]["at"] - time.time() + time.monotonic()
    while status["state"] not in _OVER and time.monotonic() - started < _END_S:
        time.sleep(0.2)
        status = ask(server, "models/m/rollout")
    ended = status["history"][-1]["at"] - time.time() + time.monotonic()
    time.sleep(max(0.0, started + 5 - time.monotonic()))  # a load that fails is over at once
    time.sleep(2)
    seen = load.between(started, ended + 1)
    wrong = sum(event.result == "wrong" for event in seen)
    candidate = status["total"]["candidate"]
    return Row(
        name,
        status["state"],
        max(0.0, ended - started),
        candidate.get("ok", 0) + candidate.get("failed", 0),
        sum(event.result != "ok" for event in seen) - wrong,
        wrong,
        p99_ms(load.between(quiet, quiet + 5), int(stable)),
        p99_ms(load.between(started, max(ended, started + 5)), int(stable)),
        status["reason"],
    )


@contextmanager
def started() -> Iterator[tuple[Server, Path]]:
    """Start a server with version 1 of the model; yield it and its repository."""
    # A short path, for the sockets in it.
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as private:
        repository = Path(private, "models")
        write(repository, 1)
        arguments = [f"--model-repository={repository}", "--model-control-mode=explicit", "--load-model=m"]
        log = Path(os.environ.get("LONG_LOG") or Path(private, "server.log"))
        server = Server(arguments, log, {"TMPDIR": private}).start()
        try:
            yield server, repository
        finally:
            server.stop()


def main() -> int:
    """Run the candidates; return 0 if all went as they should."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(CANDIDATES))
    names = parser.parse_args().only or list(CANDIDATES)
    rows = []
    with started() as (server, repository), Load(server) as load:
        say(HEADER)
        for version, name in enumerate(names, start=2):
            rows.append(roll_out(server, load, repository, name, version))
            say(rows[-1].line())
            for error in {e.result for e in load.events if e.result not in ("ok", "wrong")}:
                say(f"    {error[:200]}")
            load.events.clear()
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
