"""CPU seconds and peak resident memory of each process of a server, by its role."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1 << 20
# Application and deployment; a method's name follows while it runs.
REPLICA_TITLE = r"^ray::ServeReplica:(\S+?)(?:\.[a-z_]+)?(?:\s|$)"
# The first match names the process. Ray titles its workers.
ROLES = (
    (REPLICA_TITLE, "replica {0}"),
    (r"ray::ServeController", "serve controller"),
    (r"ray::ProxyActor|ray::HAProxyManager", "serve proxy"),
    (r"ray::(\w+)", "ray::{0}"),
    (r"(?:^|/)haproxy\b", "haproxy"),
    (r"nereid: fork server of models", "fork server of models"),
    (r"nereid: fork server", "fork server"),
    (r"nereid: model (\S+)", "model {0}"),
    (r"gcs_server", "gcs"),
    (r"raylet/raylet", "raylet"),
    (r"triton_python_backend_stub\s+\S*?([^/]+)/\d+/model.py", "stub {0}"),
    (r"(?:^|/)tritonserver\s", "tritonserver"),
    (r"ray-dashboard-|ray\.dashboard|ray/dashboard/dashboard|resource_tracker", "ray dashboard"),
    (r"ray/(?:dashboard|_private|autoscaler|core)/", "ray agents"),
)


@dataclass(frozen=True)
class Usage:
    """Cores used and peak resident memory of one role during a measurement."""

    cores: float
    peak_mib: float


class CpuMeter:
    """Measures a process tree between its construction and `stop`."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._started = time.monotonic()
        self._before = {process.pid: cpu_seconds(process) for process in tree(root)}
        for pid in self._before:
            reset_peak(pid)

    def stop(self) -> dict[str, Usage]:
        wall = time.monotonic() - self._started
        cores: defaultdict[str, float] = defaultdict(float)
        peaks: defaultdict[str, float] = defaultdict(float)
        for process in tree(self._root):
            role = role_of(process, is_root=process.pid == self._root.pid)
            cores[role] += (cpu_seconds(process) - self._before.get(process.pid, 0.0)) / wall
            peaks[role] += peak_mib(process.pid)
        return {role: Usage(cores[role], peaks[role]) for role in peaks}


def tree(root: psutil.Process) -> Iterator[psutil.Process]:
    try:
        yield root
        yield from root.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def role_of(process: psutil.Process, is_root: bool = False) -> str:
    try:
        title = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "gone"
    for pattern, name in ROLES:
        if found := re.search(pattern, title):
            return name.format(*found.groups())
    return "driver" if is_root else "other"


def replicas(root: psutil.Process) -> dict[int, str]:
    """Return pid and `application:deployment` of each Serve replica under the server."""
    titles = {process.pid: " ".join(process.cmdline()) for process in tree(root)}
    return {pid: match[1] for pid, title in titles.items() if (match := re.match(REPLICA_TITLE, title))}


def join_environment(root: psutil.Process) -> dict[str, str]:
    """Return the environment in which a driver joins the server's cluster: address and authentication."""
    node = next(process for process in tree(root) if "raylet/raylet" in " ".join(process.cmdline()))
    address = re.search(r"--gcs-address=(\S+)", " ".join(node.cmdline()))
    prefixes = ("RAY_AUTH", "RAY_SERVE", "RAY_ENABLE")
    settings = {name: value for name, value in node.environ().items() if name.startswith(prefixes)}
    return {**settings, "RAY_ADDRESS": address[1] if address else ""}


def cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def reset_peak(pid: int) -> None:
    """Restart VmHWM from the present size: see proc(5), clear_refs."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        pass  # then the peak is the one since the process began


def peak_mib(pid: int) -> float:
    return status_kib(pid, "status", "VmHWM") / 1024


def status_kib(pid: int, file: str, field: str) -> int:
    """Return a `Field:   123 kB` line of /proc/PID/FILE; 0 when the process has ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


def total(usage: Mapping[str, Usage]) -> Usage:
    return Usage(sum(u.cores for u in usage.values()), sum(u.peak_mib for u in usage.values()))
