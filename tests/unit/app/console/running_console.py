"""A console over the fronts of a service under test."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from app.access.grants import Grants
from app.access.tokens import Scope, make_token
from app.console.server import Console, Place
from app.console.upstream import Upstream
from app.ingress.access.guard import Guard
from app.transport.loops.thread import LoopThread
from tests.unit.app.ingress.running_fronts import Running

TOKENS: dict[str, tuple[Scope, ...]] = {
    "ops": ("manage", "metrics"),
    "web": ("infer",),
    "teacher": ("feedback",),
}
"""The scopes of tokens by their text, which is their name too."""


def guard_of_tokens() -> Guard:
    """Return a guard that knows `TOKENS`."""
    return Guard(Grants(make_token(name, name=name, scope=scope) for name, scope in TOKENS.items()), None)


class Answer(NamedTuple):
    """An answer of the console."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningConsole:
    """A console on a loop of its own, over fronts on another.

    Args:
        directory: for the fronts' settings.
        service: behind the fronts.
        guard: of the fronts.
        place: of the console.
        args: settings of the fronts.
    """

    def __init__(
        self,
        directory: Path,
        service: Any = None,
        guard: Guard | None = None,
        place: Place | None = None,
        **args: Any,
    ) -> None:
        self.fronts = Running(directory, service, guard, **args)
        self.service: Any = self.fronts.service
        self._loop = LoopThread("console")
        self._console = Console(Upstream(f"http://{self.fronts.http}"), place or Place(port=0))
        self.port = self._loop.call(self._console.start())
        self.url = f"http://127.0.0.1:{self.port}/"

    def close(self) -> None:
        self._loop.call(self._console.stop())
        self._loop.stop()
        self.fronts.close()

    def ask(self, method: str, path: str, body: bytes | None = None, /, **headers: str) -> Answer:
        """Ask the console; names of headers have underscores."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.url}{path.lstrip('/')}", body, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())
