"""Starting, watching, freezing and stopping the servers that are compared.

Each runs in a session of its own and is stopped by its own pid, then by those of whatever it left behind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.processes import CpuMeter, total, tree
from benchmarks.tools import ROOT, MissingTool, TritonInstall
from benchmarks.workloads import IDENTITY, Workload

READY_S = 240
STOP_S = 60
QUIET_S, QUIET_CORES = 10, 0.25
NAMES = ("nereid", "nereid-2", "triton", "serve")
OURS = {"nereid": (), "nereid-2": ("--ingress-replicas=2",), "nereid-dev": ("dev",)}
PEERS = (*NAMES, "nereid-dev", "mlserver")
TRITON_CPP = "triton-cpp"


class ServerFailed(RuntimeError):
    """A server ended, or did not become ready, or stopped answering."""


@dataclass(frozen=True)
class Counts:
    """A model's counters since its server started."""

    inferences: int
    executions: int
    failures: int

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.inferences - before.inferences,
            self.executions - before.executions,
            self.failures - before.failures,
        )


@dataclass(frozen=True)
class Command:
    """How to run one server. `grpc_port` 0: it speaks HTTP only.

    `freezable`: its idle processes use CPU time, and survive a while stopped. Triton's use none, and
    its Python backend may take a stub that was stopped for a dead one. `binary`, `shared_memory` and
    `statistics`: whether it knows these extensions. `models`: what it serves, if that is not everything.
    `general`: it knows what requests that differ have.
    """

    name: str
    arguments: Sequence[str]
    http_port: int
    grpc_port: int
    freezable: bool
    env: Mapping[str, str] = field(default_factory=dict)
    binary: bool = True
    shared_memory: bool = True
    statistics: bool = True
    models: frozenset[str] | None = None
    general: bool = True


@dataclass(frozen=True)
class Server:
    command: Command
    process: psutil.Process
    log: Path
    ready_s: float

    @property
    def name(self) -> str:
        return self.command.name

    def port(self, protocol: str) -> int:
        """Return the port of a protocol; 0 for one that the server does not speak."""
        return self.command.http_port if protocol == "http" else self.command.grpc_port

    def serves(self, workload: Workload, protocol: str) -> bool:
        """Return whether the server can answer this request."""
        command = self.command
        general = command.general or not workload.others
        known = general and (command.shared_memory or not workload.regions)
        return bool(known and self.has(workload.model) and self.port(protocol))

    def has(self, model: str) -> bool:
        """Return whether it serves a model."""
        return not model or self.command.models is None or model in self.command.models

    def asked(self, workload: Workload) -> Workload:
        """Return the request in the form that the server accepts."""
        return workload if self.command.binary else workload.as_json()

    def share(self, region: str, nbytes: int) -> None:
        """Register system shared memory, until the server ends."""
        address = url(self.command.http_port, f"/v2/systemsharedmemory/region/{region}/register")
        body = json.dumps({"key": f"/{region}", "offset": 0, "byte_size": nbytes}).encode()
        with urllib.request.urlopen(urllib.request.Request(address, body, method="POST"), timeout=20):
            pass

    def counts(self, model: str) -> Counts | None:
        """Return a model's counters; None for a server without statistics."""
        if not self.command.statistics:
            return None
        address = url(self.command.http_port, f"/v2/models/{model}/stats")
        try:
            with urllib.request.urlopen(address, timeout=20) as reply:
                stats = json.load(reply)["model_stats"][-1]
        except OSError as error:
            raise ServerFailed(f"{self.name} does not answer: {error}\n{tail(self.log)}") from error
        failures = stats.get("inference_stats", {}).get("fail", {}).get("count", 0)
        return Counts(int(stats["inference_count"]), int(stats["execution_count"]), int(failures))

    def freeze(self) -> None:
        """Stop every process: an idle Ray cluster's heartbeats would cost the loaded server CPU time."""
        signal_tree(self.process, signal.SIGSTOP)

    def thaw(self) -> None:
        signal_tree(self.process, signal.SIGCONT)
        wait_ready(self.command, self.process, self.log, deadline=time.monotonic() + 30)


def signal_tree(root: psutil.Process, number: int) -> None:
    for process in tree(root):
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


@contextmanager
def frozen(servers: Sequence[Server]) -> Iterator[None]:
    """Freeze `servers` meanwhile, once they have finished the requests of the last load generator."""
    for server in servers:
        wait_quiet(server.process)
    stopped = [server for server in servers if server.command.freezable]
    for server in stopped:
        server.freeze()
    try:
        yield
    finally:
        for server in stopped:
            server.thaw()


@contextmanager
def running(command: Command, scratch: Path) -> Iterator[Server]:
    log = scratch / f"{command.name}.log"
    began = time.monotonic()
    with log.open("wb") as output:
        process = psutil.Popen(
            list(command.arguments),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**clean_environment(), **command.env},
            cwd=scratch,  # a Python backend imports what lies where it was started
            start_new_session=True,
        )
    try:
        wait_ready(command, process, log, deadline=began + READY_S)
        yield Server(command, process, log, time.monotonic() - began)
    finally:
        stop(process)


def wait_quiet(root: psutil.Process) -> None:
    """Wait until the process tree is idle: requests of clients that left are still executed."""
    deadline = time.monotonic() + QUIET_S
    while time.monotonic() < deadline:
        meter = CpuMeter(root)
        time.sleep(0.3)
        if total(meter.stop()).cores < QUIET_CORES:
            return


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that join a Ray cluster or change its settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def wait_ready(command: Command, process: psutil.Process, log: Path, deadline: float) -> None:
    address = url(command.http_port, "/v2/health/ready")
    while time.monotonic() < deadline:
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            raise ServerFailed(f"{command.name} ended before it was ready:\n{tail(log)}")
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise ServerFailed(f"{command.name} was not ready in time:\n{tail(log)}")


def stop(process: psutil.Popen) -> None:
    """Send SIGTERM to the server alone, which ends its children; then SIGKILL to what is left."""
    family = list(tree(process))
    signal_tree(process, signal.SIGCONT)
    process.terminate()
    try:
        process.wait(STOP_S)
    except psutil.TimeoutExpired:
        print(f"pid {process.pid} did not stop in {STOP_S} s: killed", file=sys.stderr)
    _, left = psutil.wait_procs(family, timeout=5)
    for survivor in left:
        survivor.kill()
    psutil.wait_procs(left, timeout=5)


def url(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def nereid(repository: Path, scratch: Path, executable: Path, name: str = "nereid") -> Command:
    """Return the command of one of our sides: of `OURS`, its words and flags beyond the others'."""
    if not executable.exists():
        raise MissingTool(
            f"{executable} does not exist: pip install -e . (or make), or name it with --nereid"
        )
    http, grpc, metrics = free_ports(3)
    return Command(
        name,
        [
            *(str(executable), *OURS[name], f"--model-repository={repository}"),
            *(f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"),
            "--allow-client-shm=true",
        ],
        http,
        grpc,
        freezable=True,
        env={
            "RAY_TMPDIR": str(scratch / f"n{list(OURS).index(name)}")
        },  # short: Ray puts unix sockets under it
    )


def triton(name: str, repository: Path, install: TritonInstall, backends: Path) -> Command:
    http, grpc, metrics = free_ports(3)
    return Command(
        name,
        [
            *(str(install.binary), f"--model-repository={repository}"),
            *(f"--backend-directory={backends}", f"--cache-directory={install.package / 'caches'}"),
            *(f"--{front}-address=127.0.0.1" for front in ("http", "grpc", "metrics")),
            *(f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"),
        ],
        http,
        grpc,
        freezable=False,
        env={
            "LD_LIBRARY_PATH": install.library_path,
            "PATH": f"{install.python.parent}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(install.python.parent.parent),
        },
        models=frozenset(path.name for path in repository.iterdir()),
    )


def plain_serve(repository: Path, scratch: Path) -> Command:
    http, stats, metrics = free_ports(3)
    state = scratch / "haproxy"
    state.mkdir()
    return Command(
        "serve",
        [
            *(sys.executable, "-m", "benchmarks.plain_serve"),
            *(f"--port={http}", f"--repository={repository}", f"--temp-dir={scratch / 's'}"),
        ],
        http,
        0,
        freezable=True,
        shared_memory=False,
        general=False,
        env={
            "PYTHONPATH": str(ROOT),
            "RAY_worker_niceness": "0",  # as nereid sets it for itself
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(state / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(state / "admin.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(state),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(state / "server-state"),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        },
    )


def mlserver(scratch: Path, python: Path) -> Command:
    """`parallel_workers` 0: models run in the server's process, the fastest for models as light as these."""
    http, grpc, metrics = free_ports(3)
    folder = scratch / "mlserver"
    models = {IDENTITY: "Identity", "simple": "Simple"}
    for name, implementation in models.items():
        (folder / name).mkdir(parents=True)
        settings = {"name": name, "implementation": f"mlserver_models.{implementation}"}
        (folder / name / "model-settings.json").write_text(json.dumps(settings))
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    options = {"host": "127.0.0.1", "debug": False, "parallel_workers": 0, **ports}
    (folder / "settings.json").write_text(json.dumps(options))
    return Command(
        "mlserver",
        [str(python.with_name("mlserver")), "start", str(folder)],
        http,
        grpc,
        freezable=True,
        env={"PYTHONPATH": str(ROOT / "benchmarks" / "peer_models")},
        binary=False,
        shared_memory=False,
        statistics=False,
        general=False,
        models=frozenset(models),
    )
