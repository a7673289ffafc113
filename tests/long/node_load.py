"""Clients of the suites that lose machines: copies of the model `steady` say which machine has answered."""

import http.client
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tests.long.client_threads import ClientThreads

_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.1
_NOTICED_S: Final = 1.0


class Request(NamedTuple):
    """One request, by `time.monotonic`, and the machine that answered; 0 and a text for a failure."""

    begun: float
    ended: float
    machine: int
    failure: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


class NodeLoad(ClientThreads):
    """Connections to one machine, each with one request after the other; asks for its readiness too."""

    def __init__(self, address: str, connections: int, models: Sequence[str] = ("steady",)) -> None:
        self._address = address
        self._models = itertools.cycle(models)
        self.requests: list[Request] = []
        self.unready: list[float] = []
        """When the machine said that it is not ready."""
        super().__init__([*[self._run] * connections, self._watch], _TIMEOUT_S)

    def answered_since(self, since: float) -> int:
        """Return how many requests were answered since a moment."""
        return sum(bool(r.machine) and r.ended >= since for r in list(self.requests))

    def answered_by(self, machine: int, since: float) -> int:
        """Return how many requests a machine has answered since a moment."""
        return sum(r.machine == machine and r.ended >= since for r in list(self.requests))

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._address, 8000, timeout=_TIMEOUT_S)
        path = f"/v2/models/{next(self._models)}/infer"
        while not self.stop.is_set():
            begun = time.monotonic()
            try:
                machine, failure = self.ask(connection, path), ""
            except (OSError, http.client.HTTPException, ValueError) as error:
                machine, failure = 0, f"{path}: {error or repr(error)}"
                connection.close()
            self.requests.append(Request(begun, time.monotonic(), machine, failure))
            if failure:
                self.stop.wait(_PAUSE_S)
        connection.close()

    @staticmethod
    def ask(connection: http.client.HTTPConnection, path: str) -> int:
        """Send a request; return the machine that has answered, or raise ValueError."""
        tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}
        connection.request("POST", path, json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        body = json.loads(response.read())
        if response.status != 200:
            raise ValueError(f"{response.status} {body.get('error')}")
        found = {output["name"]: output["data"] for output in body["outputs"]}
        if found["OUTPUT0"] != [2]:
            raise ValueError(f"wrong answer {found}")
        return int(found["MACHINE"][0])

    def _watch(self) -> None:
        while not self.stop.wait(_PAUSE_S):
            if not ready(self._address):
                self.unready.append(time.monotonic())


class Management(ClientThreads):
    """Calls of the repository manager by way of one machine: the index, and a load of what is loaded."""

    def __init__(self, address: str, model: str) -> None:
        paths = ("repository/index", f"repository/models/{model}/load")
        self._urls = [f"http://{address}:8000/v2/{path}" for path in paths]
        self._calls: list[Request] = []
        super().__init__([self._run], _TIMEOUT_S)

    @staticmethod
    def load(address: str, model: str) -> None:
        """Load a model."""
        url = f"http://{address}:8000/v2/repository/models/{model}/load"
        with urllib.request.urlopen(url, b"{}", timeout=120):
            pass

    def judge(self, since: float) -> tuple[float, float]:
        """Return the seconds of the slowest call, and the longest time without an answer that is no error."""
        calls = [call for call in list(self._calls) if call.ended >= since]
        moments = [since, *(call.ended for call in calls if not call.failure), time.monotonic()]
        longest = max(after - before for before, after in itertools.pairwise(moments))
        return max((call.seconds for call in calls), default=_TIMEOUT_S), longest

    def _run(self) -> None:
        for url in itertools.cycle(self._urls):
            if self.stop.wait(_PAUSE_S):
                return
            begun, failure = time.monotonic(), ""
            try:
                with urllib.request.urlopen(url, b"{}", timeout=_TIMEOUT_S) as response:
                    response.read()
            except OSError as error:
                failure = str(error)
            self._calls.append(Request(begun, time.monotonic(), 0, failure))


def ready(address: str) -> bool:
    """Whether a machine says that it is ready."""
    try:
        with urllib.request.urlopen(f"http://{address}:8000/v2/health/ready", timeout=5):
            return True
    except OSError:
        return False


def ask(address: str, model: str) -> str:
    """Ask for a copy of `steady` at a machine; return what is wrong with the answer, "" for nothing."""
    connection = http.client.HTTPConnection(address, 8000, timeout=_TIMEOUT_S)
    try:
        NodeLoad.ask(connection, f"/v2/models/{model}/infer")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error) or repr(error)
    finally:
        connection.close()
    return ""


def answer(address: str, model: str) -> Any:
    """Ask for [1, 2] + 1 at a machine; None without an answer."""
    tensor = {"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    body = json.dumps({"inputs": [tensor]}).encode()
    try:
        url = f"http://{address}:8000/v2/models/{model}/infer"
        with urllib.request.urlopen(url, body, timeout=5) as response:
            return json.load(response)["outputs"][0]["data"]
    except OSError:
        return None


HEADER: Final = """\
| event | answered | in flight | failed | of them later | longest s | not ready s | whole again after s |
|---|---|---|---|---|---|---|---|"""


class Row(NamedTuple):
    """What clients of another machine saw from an event to the end of the load."""

    event: str
    answered: int
    in_flight: int
    """When it happened."""
    failed: int
    later: int
    """Of those that failed, the ones that began when clients of a lost machine must have noticed."""
    longest_s: float
    not_ready_s: float
    whole_s: float
    failures: tuple[str, ...]

    def line(self) -> str:
        """Return the row as a line of a Markdown table."""
        cells = (self.event, self.answered, self.in_flight, self.failed, self.later, f"{self.longest_s:.1f}")
        return f"| {' | '.join(map(str, cells))} | {self.not_ready_s:.1f} | {self.whole_s:.1f} |"


def judge(event: str, load: NodeLoad, at: float, whole: float) -> Row:
    """Sum up what followed an event.

    Args:
        event: its name.
        load: the requests.
        at: when it happened.
        whole: when everything was as before again.
    """
    after = [request for request in load.requests if request.ended >= at]
    failed = [request for request in after if request.failure]
    unready = [moment for moment in load.unready if moment >= at]
    return Row(
        event,
        len(after) - len(failed),
        sum(request.begun < at for request in after),
        len(failed),
        sum(request.begun > at + _NOTICED_S for request in failed),
        max((request.seconds for request in after), default=0.0),
        max(unready) - min(unready) if unready else 0.0,
        whole - at,
        tuple(dict.fromkeys(_kinds(failed))),
    )


def _kinds(failed: Iterable[Request]) -> Iterable[str]:
    return (request.failure[:200] for request in failed)
