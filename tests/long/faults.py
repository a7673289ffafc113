"""Kills and stops each kind of process of a server under load, and prints what its clients saw.

For every fault: the requests that were refused because the model was not ready, those that were lost
(another error, or no answer), those answered wrongly, the seconds until the server or the model was not
ready, and until everything was whole again or the program had exited.
"""

import argparse
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil
import tritonclient.grpc
import tritonclient.http

from benchmarks.processes import role_of, tree
from tests.long.client import tensors
from tests.long.client_threads import ClientThreads
from tests.long.server import say
from tests.server import ROOT, Server, wait_until

WAIT_S: Final = 90.0
"""How long a server may take to be whole again, or to exit."""
_WATCH_S: Final = {"KILL": 6.0, "STOP": 15.0}
"""The least time to watch: what is stopped is missed later than what has died."""
_QUIET_S: Final = 3.0
"""Everything must have worked for so long to count as whole."""
_TIMEOUT_S: Final = 60.0
_REFUSED: Final = "not at ready state"
_LONE: Final = "add_one"
_PAIRED: Final = "paired"
_PROTOCOLS: Final = {"HTTP": tritonclient.http, "gRPC": tritonclient.grpc}

TARGETS: Final = {
    "replica, lone": ("replica add_one:1:add_one", _LONE),
    "replica, one of two": ("replica paired:1:paired", _PAIRED),
    "process of a model, lone": ("model add_one:1", _LONE),
    "process of a model, one of two": ("model paired:1", _PAIRED),
    "fork server of models": ("fork server of models", _LONE),
    "fork server and a process of a model": ("fork server of models|model add_one:1", _LONE),
    "ingress, one of two": ("replica nereid:ingress", _LONE),
    "manager": ("replica nereid:repository-manager", _LONE),
    "controller": ("serve controller", _LONE),
    "raylet": ("raylet", _LONE),
    "GCS": ("gcs", _LONE),
    "dashboard agent": ("dashboard/agent.py", _LONE),
    "runtime-env agent": ("runtime_env/agent/main.py", _LONE),
}
"""Of each row: the process, by its role or a part of its command line, and the model that is asked. Several
processes are struck at once; all but the last may be missing, as a fork server that nobody asks for long."""
SIGNALS: Final = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}


class Event(NamedTuple):
    """A request or a probe: when it began and ended, by `time.monotonic`, and how."""

    begun: float
    ended: float
    result: str
    """"ok", "wrong", or the error."""


class Load(ClientThreads):
    """Clients that ask a model over one protocol, each request after the other, and check every answer."""

    def __init__(self, server: Server, protocol: str, model: str, clients: int = 2) -> None:
        self._module: Any = _PROTOCOLS[protocol]
        self._url = server.http_url if protocol == "HTTP" else server.grpc_url
        self._options = {} if protocol == "HTTP" else {"client_timeout": _TIMEOUT_S}
        self._model = model
        self.events: list[Event] = []
        self.in_flight: dict[int, float] = {}
        """By client: when its request began."""
        super().__init__([partial(self._run, number) for number in range(clients)], _TIMEOUT_S + 5)

    def _run(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        client = self._open()
        while not self.stop.is_set():
            values = random.integers(0, 1 << 20, (1, 16)).astype(np.float32)
            self.in_flight[seed] = begun = time.monotonic()
            result = "ok"
            try:
                found = client.infer(self._model, tensors(self._module, {"INPUT0": values}), **self._options)
                if not np.array_equal(found.as_numpy("OUTPUT0"), values + 1):
                    result = "wrong"
            except Exception as error:
                result = str(error) or repr(error)
                with suppress(Exception):
                    client.close()
                client = self._open()
            self.events.append(Event(begun, time.monotonic(), result))
            self.stop.wait(0.01 if result == "ok" else 0.1)

    def _open(self) -> Any:
        if self._module is tritonclient.http:
            return tritonclient.http.InferenceServerClient(self._url, network_timeout=_TIMEOUT_S)
        return tritonclient.grpc.InferenceServerClient(self._url)


class Probe(ClientThreads):
    """Asks every 50 ms, on new connections, whether server and model are ready."""

    def __init__(self, server: Server, model: str) -> None:
        self._urls = [
            f"http://{server.http_url}/v2/{path}" for path in ("health/ready", f"models/{model}/ready")
        ]
        self.events: list[Event] = []
        super().__init__([self._run], _TIMEOUT_S)

    def _run(self) -> None:
        while not self.stop.wait(0.05):
            begun = time.monotonic()
            result = "ok"
            for url in self._urls:
                try:
                    urllib.request.urlopen(url, timeout=1.0).close()
                except urllib.error.HTTPError as error:
                    result = str(error.code)
                except OSError as error:
                    result = str(error)
            self.events.append(Event(begun, time.monotonic(), result))


class Row(NamedTuple):
    """What a fault led to, over one protocol; seconds are from the fault, None for never."""

    fault: str
    protocol: str
    served: int
    refused: int
    """While the model was not ready."""
    lost: int
    wrong: int
    slowest_s: float
    not_ready_s: float | None
    whole_s: float | None
    exit: str
    errors: tuple[str, ...]

    def line(self) -> str:
        """Return the row as a line of a Markdown table."""
        cells = (
            *(self.fault, self.protocol, self.served, self.refused, self.lost, self.wrong),
            *(f"{self.slowest_s:.1f}", _seconds(self.not_ready_s), self.exit or _seconds(self.whole_s)),
        )
        return f"| {' | '.join(map(str, cells))} |"


HEADER: Final = """\
| fault | protocol | served | refused | lost | wrong | slowest s | not ready | whole after s, or exit |
|---|---|---|---|---|---|---|---|---|"""


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def find_all(server: Server, patterns: str) -> list[psutil.Process]:
    """Return the processes of these patterns; all but the last may be missing."""
    *others, last = patterns.split("|")
    found = [find(server, last)]
    for pattern in others:
        with suppress(LookupError):
            found.append(find(server, pattern))
    return found


def find(server: Server, pattern: str) -> psutil.Process:
    """Return a process of the server, by its role or a part of its command line.

    Raises:
        LookupError: it runs no such process.
    """
    assert server.process is not None
    for process in tree(psutil.Process(server.process.pid)):
        with suppress(psutil.Error):
            if role_of(process) == pattern or pattern in " ".join(process.cmdline()):
                return process
    raise LookupError(pattern)


def strike(server: Server, target: str, name: str, protocol: str) -> Row:
    """Send one signal to one process while clients ask; return what they saw."""
    patterns, model = TARGETS[target]
    victims = find_all(server, patterns)
    with Load(server, protocol, model) as load, Probe(server, model) as probe:
        wait_until(lambda: len(load.events) > 20, 30, "the load runs")
        struck = time.monotonic()
        for victim in victims:
            victim.send_signal(SIGNALS[name])
        exit_ = _settle(server, load, probe, struck, struck + _WATCH_S[name])
        for victim in victims if name == "STOP" else []:
            with suppress(psutil.NoSuchProcess):  # it may have been replaced
                victim.send_signal(signal.SIGCONT)
    return judge(f"{name} {target}", protocol, load.events, probe.events, struck, exit_)


def _settle(server: Server, load: Load, probe: Probe, struck: float, earliest: float) -> str:
    """Wait until the server is whole, but not before `earliest`, or has exited; return how, or nothing."""
    assert server.process is not None
    while time.monotonic() < struck + WAIT_S:
        time.sleep(0.1)
        if server.exited():
            return f"exit {server.process.returncode} after {time.monotonic() - struck:.1f}"
        events = [*load.events, *probe.events]
        since = max([struck, *(event.ended for event in events if event.result != "ok")])
        quiet = time.monotonic() > max(earliest, since + _QUIET_S)
        if quiet and probe.events[-1].begun > since and min(load.in_flight.values()) > since:
            break
    return ""


def judge(
    fault: str, protocol: str, load: Sequence[Event], probes: Sequence[Event], struck: float, exit_: str
) -> Row:
    """Sum up the events of a fault."""
    after = [event for event in load if event.ended >= struck]
    failed = [event for event in after if event.result not in ("ok", "wrong")]
    if exit_:  # who asks a server that has exited has lost nothing
        failed = [event for event in failed if event.result and "refused" not in event.result.lower()]
    unready = [event for event in probes if event.ended >= struck and event.result != "ok"]
    bad = [event.ended for event in (*failed, *unready)]
    return Row(
        fault=fault,
        protocol=protocol,
        served=sum(event.result == "ok" for event in after),
        refused=sum(_REFUSED in event.result for event in failed),
        lost=sum(_REFUSED not in event.result for event in failed),
        wrong=sum(event.result == "wrong" for event in load),
        slowest_s=max((event.ended - event.begun for event in after), default=0.0),
        not_ready_s=unready[0].ended - struck if unready else None,
        whole_s=None if exit_ else max(bad) - struck if bad else 0.0,
        exit=exit_,
        errors=tuple(dict.fromkeys(event.result[:200] for event in failed)),
    )


@contextmanager
def _server() -> Iterator[Callable[[], Server]]:
    """Give a function that returns a whole server, a new one when the last has not recovered."""
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as private:
        repository = Path(private, "models")
        for name in (_LONE, _PAIRED):
            shutil.copytree(ROOT / "tests/long/models" / _LONE, repository / name)
        with (repository / _PAIRED / "config.pbtxt").open("a") as config:
            config.write('parameters { key: "ray_replicas" value { string_value: "2" } }')
        arguments = [f"--model-repository={repository}", "--ingress-replicas=2"]
        server = Server(arguments, Path(private, "server.log"), {"TMPDIR": private})

        def whole() -> Server:
            if server.process is None or server.exited() or not _whole(server):
                if server.process is not None and not server.exited():
                    server.stop()
                server.start()
                wait_until(lambda: _whole(server), 60, "both models are ready")
            return server

        try:
            yield whole
        finally:
            if server.process is not None and not server.exited():
                server.stop()


def _whole(server: Server) -> bool:
    return server.ready() and server.model_ready(_LONE) and server.model_ready(_PAIRED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: python -m tests.long.faults --signal STOP --target 'replica, lone'",
    )
    parser.add_argument("--signal", choices=SIGNALS, action="append", help="default: both")
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all")
    parser.add_argument("--protocol", choices=_PROTOCOLS, action="append", help="default: both")
    parser.add_argument("--errors", action="store_true", help="print the errors that clients saw")
    given = parser.parse_args()
    say(HEADER)
    with _server() as whole:
        for name in given.signal or SIGNALS:
            for target in given.target or TARGETS:
                for protocol in given.protocol or _PROTOCOLS:
                    try:
                        row = strike(whole(), target, name, protocol)
                    except LookupError:
                        say(f"| {name} {target} | {protocol} | there is no such process | | | | | | |")
                        continue
                    say(row.line())
                    if given.errors:
                        for error in row.errors:
                            say(f"    {error}")


if __name__ == "__main__":
    main()
