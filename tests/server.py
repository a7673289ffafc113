"""A Nereid server as a test sees it: a process to start, ask, hurt and stop."""

import contextlib
import itertools
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

START_S = 180.0
ROOT = Path(__file__).parent.parent
WITH_ENGINE = "NEREID_TEST_ENGINE" in os.environ
"""Whether the contract suite asks the engine of one process."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_FIRST = 26_000 if WITH_ENGINE else 20_000  # `make test` runs the suite over the engine beside that over Ray
_PORTS = range(_FIRST + _WORKER, _FIRST + 6000, _WORKERS)  # no two workers of a run have one in common
_ports = itertools.cycle(random.sample(_PORTS, len(_PORTS)))


def free_port() -> int:
    """A port nobody listens on and that was not returned before, as long as there are others.

    It is outside the range from which the kernel gives ports to those who name none: a port of that range
    could go to a channel of the server's own before its listener takes it.
    """
    while True:
        port = next(_ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> float:
    """Poll a condition; return the seconds it took, or fail after `timeout` seconds."""
    started = time.monotonic()
    while time.monotonic() - started < timeout:
        if condition():
            return time.monotonic() - started
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout} s: {what}")


class Server:
    """One `nereid` process with its local Ray cluster; NEREID_TEST_FLAGS gives every one more flags."""

    program: Sequence[str] = (sys.executable, "-m", "nereid")
    directory = ROOT

    def __init__(self, arguments: Iterable[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.http_port, self.grpc_port, self.metrics_port = free_port(), free_port(), free_port()
        self.http_url = f"127.0.0.1:{self.http_port}"
        self.grpc_url = f"127.0.0.1:{self.grpc_port}"
        self.log = log
        self._arguments = [*arguments, *shlex.split(os.environ.get("NEREID_TEST_FLAGS", ""))]
        defaults = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
        defaults["XDG_STATE_HOME"] = f"{log}.state"  # that of a server that is started again
        self._env = {**os.environ, **defaults, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> "Server":
        """Start the process and wait until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, *self._arguments_with_ports()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self._env,
                start_new_session=True,
            )
        if wait:
            try:
                wait_until(lambda: self.ready() or self.exited(), START_S, "the server is ready")
                assert not self.exited(), "the server has exited"
            except AssertionError as error:
                self.stop()
                raise AssertionError(f"{error}\n{self.output()[-8000:]}") from None
            except BaseException:  # an interrupt, a time limit of the test
                self.stop()
                raise
        return self

    def _arguments_with_ports(self) -> list[str]:
        """Return the arguments of `program`."""
        ports = {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}
        return [*self._arguments, *(f"--{front}-port={port}" for front, port in ports.items())]

    def stop(self, number: int = signal.SIGTERM, timeout: float = 60.0) -> int:
        """Send a signal and wait for the exit; returns the exit status."""
        assert self.process is not None
        descendants = self._descendants()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            for process in psutil.wait_procs(descendants, timeout=5)[1]:
                process.kill()

    def exited(self) -> bool:
        """Whether the process has ended."""
        return self.process is not None and self.process.poll() is not None

    def output(self) -> str:
        """What the server has printed so far."""
        return self.log.read_text(errors="replace")

    def get(self, path: str, timeout: float = 5.0, port: int = 0) -> tuple[int, bytes]:
        """GET a path; status 0 when there is no answer."""
        try:
            url = f"http://127.0.0.1:{port or self.http_port}{path}"
            with urllib.request.urlopen(url, timeout=timeout) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def ready(self) -> bool:
        """Whether the server says it is ready."""
        return self.get("/v2/health/ready")[0] == 200

    def model_ready(self, model: str) -> bool:
        """Whether every ingress of the server says that a model is ready."""
        # Several may share the port, and learn of a new replica one after the other: each connection reaches
        # one of them at random, and two are both reached but for one time in 32,768.
        return all(self.get(f"/v2/models/{model}/ready")[0] == 200 for _ in range(16))

    def model_unready(self, model: str) -> bool:
        """Whether every ingress of the server says that a model is not ready."""
        return all(self.get(f"/v2/models/{model}/ready")[0] != 200 for _ in range(16))

    def replicas(self, title: str) -> list[int]:
        """Process ids of Serve replicas by `application:deployment`, `nereid:ingress` say."""
        return self._titled(f"ServeReplica:{title}")

    def processes(self, application: str) -> list[int]:
        """Process ids of the replicas of a Python model that execute it, by `model:version`."""
        return self._titled(f"nereid: model {application}")

    def _titled(self, title: str) -> list[int]:
        found = []
        for process in self._descendants():
            try:
                command = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if title in command:
                found.append(process.pid)
        return sorted(found)

    def listening(self) -> set[tuple[str, str]]:
        """The title of each process that listens, with its address; the IPv6 form of an IPv4 one is that."""
        return {
            (process.cmdline()[0] if process.name().startswith("ray::") else process.name(), address)
            for process in self._descendants()
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            for address in [connection.laddr.ip.removeprefix("::ffff:")]
        }

    def _descendants(self) -> list[psutil.Process]:
        assert self.process is not None
        try:
            return [*psutil.Process(self.process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class EngineServer(Server):
    """The same models in one process without Ray: `nereid dev`, in a server's mode."""

    program = (sys.executable, "-m", "nereid", "dev")

    def __init__(
        self, arguments: Iterable[str], log: Path, env: Mapping[str, str] | None = None, mode: str = "none"
    ) -> None:
        super().__init__(arguments, log, env)
        self._mode = mode

    def _arguments_with_ports(self) -> list[str]:
        given = [word.removeprefix("--model-repository=") for word in super()._arguments_with_ports()]
        return [*given, f"--model-control-mode={self._mode}"]
