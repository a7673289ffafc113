"""The server of the long suites of rollouts, and what they ask it."""

import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.long.plants import planted
from tests.long.rollout_models import Candidate, Model
from tests.server import Server

OVER: Final = ("done", "failed", "aborted", "paused")


def call(server: Server, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """Call the API; return the HTTP status and the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http_url}/v2/{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ask(server: Server, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Call the API; an error is its answer."""
    return call(server, path, body)[1]


def change(server: Server, model: str, action: str, **fields: Any) -> dict[str, Any]:
    """Change the rollout of a model; return its status, or the error."""
    return ask(server, f"repository/models/{model}/rollout", {"action": action, **fields})


class Rollout:
    """A rollout as one watches it.

    Attributes:
        status: the last that was seen.
        begun: when the candidate was loaded, or the rollout was over; `time.monotonic` as all times here.
    """

    def __init__(self, server: Server, model: Model) -> None:
        self._server = server
        self._model = model
        self.status: dict[str, Any] = {}

    def start(self, repository: Path, version: int, candidate: Candidate, spec: dict[str, Any]) -> None:
        """Write a version and roll it out; return when it is loaded."""
        self._model.write(repository, version, candidate)
        answer = change(self._server, self._model.name, "start", spec=spec)
        self.look()
        if "error" in answer and self.status.get("candidate") != version:
            raise AssertionError(f"'{self._model.name}' was not rolled out: {answer['error']}")

    def look(self) -> str:
        """Ask for the state."""
        self.status = ask(self._server, f"models/{self._model.name}/rollout")
        return str(self.status.get("state", self.status))

    @property
    def over(self) -> bool:
        """Whether it was over when one last looked."""
        return self.status.get("state") in OVER

    @property
    def begun(self) -> float:
        """When the candidate was loaded."""
        history = self.status["history"]
        return _monotonic(history[min(1, len(history) - 1)]["at"])

    @property
    def ended(self) -> float:
        """When all requests went back to the stable version, or the rollout was over."""
        history = self.status["history"]
        times = [event["at"] for event in history if event["state"] == "rolling_back"]
        return _monotonic(times[-1] if times else history[-1]["at"])


def _monotonic(unix: float) -> float:
    return unix - time.time() + time.monotonic()


def at_once(calls: Iterable[Any]) -> list[Any]:
    """Return what functions return that run at the same time."""
    calls = list(calls)
    with ThreadPoolExecutor(max(len(calls), 1)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


@contextmanager
def served(models: Iterable[Model], plant: str = "", *flags: str) -> Iterator[tuple[Server, Path]]:
    """Start a server with version 1 of models; yield it and its repository.

    Args:
        models: what it has.
        plant: a fault that is planted in the server, see `plants.py`.
        flags: more of the command line; without a mode of control, models are loaded by name.
    """
    # A short path, for the sockets in it.
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as private:
        repository = Path(private, "models")
        names: list[str] = []
        for model in models:
            model.create(repository)
            names += {model.name, model.asked}
        if not any("control-mode" in flag for flag in flags):
            flags += ("--model-control-mode=explicit", *(f"--load-model={name}" for name in names))
        log = Path(os.environ.get("LONG_LOG") or Path(private, "server.log"))
        arguments = [f"--model-repository={repository}", *flags]
        with planted(plant) as (directory, env):
            server = Server(arguments, log, {"TMPDIR": private, **env})
            server.directory = directory
            server.start()
            try:
                yield server, repository
            finally:
                server.stop()
