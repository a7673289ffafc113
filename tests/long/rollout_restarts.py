"""Restarts a server whose models are each in another state of a rollout, and prints what serves after each.

It is stopped, killed, or ended with all of its processes and temporary files as by the loss of its machine,
and started again in each control mode in turn. For every restart: the seconds until it is ready, the models
with another state or other shares, and the answers of rejected versions. Ends with 1 if there is any.
The first line is of manager and ingress killed at once: seconds without an answer, and without the manager.
"""

import argparse
import http.client
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from tests.long.server import say
from tests.server import Server, wait_until

_CONFIG: Final = """
backend: "%s" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
"""
_SOURCE: Final = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        %s

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in values]
"""
_BODY: Final = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
)
_STAYS: Final[dict[str, Any]] = {
    "steps": [20],
    "step": {"min_seconds": 36000, "max_seconds": 72000},
    "keep_stable_seconds": 36000,
}
_REQUESTS: Final = 200
_WAIT_S: Final = 90.0
MODES: Final = ("none", "poll", "explicit")


class Case(NamedTuple):
    """A model: what is done to it, its state after that, and how many of 200 requests version 2 answers.

    Attributes:
        changes: bodies of requests to change its rollout, one after the other.
        state: that follows.
        share: answers of version 2 to 200 requests without a version.
        fails: the statement by which version 2 does not load; "" for one that does.
        rejected: whether version 2 is to get nothing.
    """

    changes: tuple[dict[str, Any], ...]
    state: str
    share: int
    fails: str = ""
    rejected: bool = False


_START: Final[dict[str, Any]] = {"action": "start", "spec": _STAYS}
_DONE: Final[dict[str, Any]] = {**_START, "weight": 100, "spec": {**_STAYS, "keep_stable_seconds": 0}}
_MIRRORS: Final[dict[str, Any]] = {"action": "start", "spec": {**_STAYS, "mirror": 20}}
CASES: Final = {
    "loading": Case((_START,), "loading", 0, "time.sleep(36000)"),
    "shadow": Case((_MIRRORS,), "shadow", 0),
    "step": Case((_START,), "step", 40),
    "paused": Case((_START, {"action": "set", "weight": 30}, {"action": "pause"}), "paused", 60),
    "promoted": Case((_START, {"action": "promote"}), "promoted", 198),
    "failed": Case((_START,), "failed", 0, "raise ValueError('no weights')", rejected=True),
    "done": Case((_DONE,), "done", 200),
    "rolled": Case((_DONE, {"action": "rollback"}), "aborted", 0, rejected=True),
    "aborted": Case((_START, {"action": "abort"}), "aborted", 0, rejected=True),
}
"""By the model's name; `aborted` is begun anew before each restart, which comes while it is rolled back."""


def write(repository: Path, name: str, version: int) -> None:
    """Write a version of a model, or the same files anew."""
    case = CASES[name]
    directory = repository / name / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    if version == 1:
        (repository / name / "config.pbtxt").write_text(_CONFIG % ("python" if case.fails else "identity"))
    statement = case.fails if version == 2 else "pass"
    (directory / "model.py").write_text(_SOURCE % (statement or "pass"))


def ask(server: Server, path: str, body: str | None = None, timeout: float = _WAIT_S) -> tuple[int, Any]:
    """Call the API; return the status, 0 for no answer, and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=timeout)
    try:
        connection.request("GET" if body is None else "POST", f"/v2/{path}", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return 0, {}
    finally:
        connection.close()


def status(server: Server, name: str) -> str:
    """Return the state of a model's rollout."""
    return str(ask(server, f"models/{name}/rollout")[1].get("state", ""))


def _is(server: Server, name: str, state: str) -> bool:
    return status(server, name) == state


def prepare(server: Server, repository: Path) -> None:
    """Bring every model into its state."""
    for name, case in CASES.items():
        write(repository, name, 2)
        for change in case.changes:
            call = (server, f"repository/models/{name}/rollout", json.dumps(change))
            begin = threading.Thread(target=ask, args=call, daemon=True)
            begin.start()
            begin.join(3 if name == "loading" else _WAIT_S)
            if change is _DONE:
                wait_until(partial(_is, server, name, "done"), _WAIT_S, f"{name} is done")
        wait_until(partial(_is, server, name, case.state), _WAIT_S, f"{name} is {case.state}")


class Watch:
    """Asks the models with a rejected version without a pause, also while the server starts."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self.answers: Counter[tuple[str, str]] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            for name in (name for name, case in CASES.items() if case.rejected):
                code, answer = ask(self._server, f"models/{name}/infer", _BODY, 5)
                if code == 200:
                    self.answers[name, answer["model_version"]] += 1

    def end(self) -> int:
        """Stop; return the answers of rejected versions."""
        self._stop.set()
        self._thread.join()
        return sum(count for (_, version), count in self.answers.items() if version != "1")


def wrong(server: Server) -> list[str]:
    """Return which models are not as they were, in words."""
    found = []
    for name, case in CASES.items():
        with suppress(AssertionError):
            wait_until(partial(_is, server, name, case.state), 10, "what it was")
        if (state := status(server, name)) != case.state:
            found.append(f"{name} is {state}")
        answers: Counter[str] = Counter()
        for _ in range(_REQUESTS):
            code, answer = ask(server, f"models/{name}/infer", _BODY)
            answers[answer["model_version"] if code == 200 else f"status {code}"] += 1
        if abs(answers["2"] - case.share) > 1 or answers["1"] + answers["2"] != _REQUESTS:
            found.append(f"{name}: {dict(answers)} instead of {case.share} by version 2")
        if case.rejected and ask(server, f"models/{name}/versions/2/infer", _BODY)[0] == 200:
            found.append(f"{name}: version 2 answers by its number")
    return found


def stop(server: Server, private: Path) -> None:
    """End the server as its operator does."""
    server.stop()


def kill(server: Server, private: Path) -> None:
    """Kill the program; its processes find out."""
    server.stop(signal.SIGKILL)


def lose(server: Server, private: Path) -> None:
    """Kill every process at once, as a machine does that is lost."""
    assert server.process is not None
    everyone = [psutil.Process(server.process.pid), *server._descendants()]
    for process in everyone:
        with suppress(psutil.Error):
            process.kill()
    server.process.wait()
    psutil.wait_procs(everyone, timeout=10)


ENDS: Final[tuple[Callable[[Server, Path], None], ...]] = (lose, stop, kill)


def crash(server: Server) -> bool:
    """Kill manager and ingress at once; print how long nothing answers; return whether all is as before."""
    victims = [*server.replicas("nereid:repository-manager"), *server.replicas("nereid:ingress")]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    wait_until(lambda: ask(server, "models/step/infer", _BODY, 1)[0] == 200, _WAIT_S, "an answer")
    answered = time.monotonic() - killed
    wait_until(lambda: status(server, "step") == "step", _WAIT_S, "the manager")
    managed = time.monotonic() - killed
    found = wrong(server)
    say(f"manager and ingress killed: {answered:.1f} s without an answer, {managed:.1f} without the manager")
    for text in found:
        say(f"    {text}")
    return not found


def started(private: Path, number: int, mode: str, wait: bool = True) -> Server:
    """Start a server over the repository with new temporary files, and the same state."""
    temporary = private / str(number)
    temporary.mkdir()
    arguments = [f"--model-repository={private / 'models'}", f"--model-control-mode={mode}"]
    arguments += ["--load-model=*"] if mode == "explicit" else ["--repository-poll-secs=1"]
    log = Path(os.environ.get("LONG_LOG") or private / "log")
    return Server(arguments, log, {"TMPDIR": str(temporary)}).start(wait)


def restart(server: Server, private: Path, number: int) -> tuple[Server, bool]:
    """End the server and start it again; print and return whether all is as before."""
    end, mode = ENDS[number % len(ENDS)], MODES[number // len(ENDS) % len(MODES)]
    for change in CASES["aborted"].changes:
        ask(server, "repository/models/aborted/rollout", json.dumps(change))
    end(server, private)  # while the candidate is rolled back
    for name, case in CASES.items():
        if case.rejected:
            write(private / "models", name, 2)  # the same files as another copy has them
    began = time.monotonic()
    server = started(private, number + 1, mode, wait=False)
    watch = Watch(server)
    try:
        wait_until(lambda: server.ready() or server.exited(), _WAIT_S, "the server is ready")
        took = time.monotonic() - began
        found = wrong(server)
    except BaseException:
        server.stop()
        raise
    finally:
        rejected = watch.end()
    say(f"| {number + 1} | {end.__name__} | {mode} | {took:.1f} | {len(found)} | {rejected} |")
    for text in found:
        say(f"    {text}")
    return server, not found and not rejected


def main() -> int:
    """Restart the server as often as is said; return 0 if every model was as before each time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="of the order of ends and modes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as directory:
        private = Path(directory)
        for name in CASES:
            write(private / "models", name, 1)
        server = started(private, 0, "explicit")
        try:
            prepare(server, private / "models")
            good = [crash(server)] if not options.first else []
            say("| restart | by | mode | ready s | models not as before | answers of rejected versions |")
            say("|---|---|---|---|---|---|")
            for number in range(options.restarts):
                server, same = restart(server, private, number + options.first)
                good.append(same)
        finally:
            server.stop()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
