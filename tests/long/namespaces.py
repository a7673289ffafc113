"""Machines that are network namespaces of this one: on a bridge, each with processes and files of its own.

Needs root, iproute2 and util-linux.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from tests.server import ROOT, wait_until

NETWORK: Final = "10.99.77"
GATEWAY: Final = f"{NETWORK}.1"
"""The address of this machine on the bridge."""
_BRIDGE: Final = "nereidbr"
_NEEDED: Final = ("ip", "tc", "unshare", "nsenter")
_START: Final = """\
mount --make-rprivate /
{shared}mount --rbind {directory}/tmp /tmp
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
{init}
"""


def require(*programs: str) -> None:
    """End the program unless it runs as root and these are installed, beside what every machine needs."""
    needed = (*_NEEDED, *programs)
    missing = [name for name in needed if not shutil.which(name)]
    if os.getuid() or missing:
        sys.exit(f"needs root and {', '.join(needed)}; missing: {', '.join(missing) or 'root'}")


def command(*words: str, timeout: float = 60.0) -> None:
    """Run a command; end the program with its output when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")


def discard(*words: str) -> None:
    """Run a command that removes what an earlier run has left, if there is any."""
    subprocess.run(words, capture_output=True, timeout=60.0, check=False)


@contextmanager
def bridge() -> Iterator[None]:
    """A bridge between the machines, with an address of ours on it; one program at a time has it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # who ends this ends the machines too
    with Path(f"/run/{_BRIDGE}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another program runs machines as namespaces")
        discard("ip", "link", "del", _BRIDGE)
        with _bridge():
            yield


@contextmanager
def _bridge() -> Iterator[None]:
    command("ip", "link", "add", _BRIDGE, "type", "bridge")
    try:
        command("ip", "addr", "add", f"{GATEWAY}/24", "dev", _BRIDGE)
        command("ip", "link", "set", _BRIDGE, "up")
        yield
    finally:
        command("ip", "link", "del", _BRIDGE)


class Machine:
    """A machine with an address on the bridge. Its /tmp survives that it is switched off.

    Args:
        number: the last part of its address.
        directory: where it has its files, not below /tmp.
        init: the shell command that is its first process, with whose end it is switched off.

    Attributes:
        root: the directory in which commands run; by default that of this repository.
    """

    def __init__(self, number: int, directory: Path, init: str = "exec sleep infinity") -> None:
        self.root = ROOT
        self.address = f"{NETWORK}.{number}"
        self.directory = directory
        self._name = f"nereid{number}"
        self._init = init
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "tmp").mkdir(parents=True, exist_ok=True)

    @contextmanager
    def connected(self) -> Iterator["Machine"]:
        """Put it on the bridge and switch it on; remove it in the end."""
        name = self._name
        self._remove()
        command("ip", "netns", "add", name)
        try:
            command("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            command("ip", "link", "set", name, "master", _BRIDGE, "up")
            for words in (f"addr add {self.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
                command("ip", "-n", name, *words.split())
            command("ip", "-n", name, "route", "add", "default", "via", GATEWAY)
            self.switch_on()
            yield self
        finally:
            self.switch_off()
            self._remove()

    def _remove(self) -> None:
        """Remove its network, also a killed run's. A link goes some time after its namespace does."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        discard("ip", "link", "del", self._name)
        discard("ip", "netns", "del", self._name)

    def switch_on(self) -> None:
        """Start its first process."""
        start = _START.format(directory=self.directory, init=self._init, shared=self._shared())
        namespaces = ("unshare", "--pid", "--mount", "--fork", "--kill-child")
        with (self.directory / "init.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._name, *namespaces, "sh", "-ec", start], stdout=log, stderr=log
            )
        wait_until(self._started, 10.0, f"{self.address} runs")

    def _shared(self) -> str:
        """Return the commands that show it this checkout, and its Python, where they are below /tmp."""
        lines = []
        for path in dict.fromkeys((ROOT, Path(sys.prefix))):
            if path.is_relative_to("/tmp"):
                seen = f"{self.directory}{path}"
                lines.append(f"mkdir -p {seen}; mount --rbind {path} {seen}\n")
        return "".join(lines)

    def _started(self) -> bool:
        """Whether the first process has made its mounts, and runs `init`."""
        with suppress(psutil.Error):
            return self._first is not None and self._first.name() not in ("unshare", "sh")
        return False

    @property
    def _first(self) -> psutil.Process | None:
        assert self._process is not None
        children = psutil.Process(self._process.pid).children()
        return children[0] if children else None

    def switch_off(self) -> None:
        """Kill each of its processes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            wait_until(lambda: not self.processes(""), 10.0, f"{self.address} is off")

    def cut(self) -> None:
        """Take it off the network: nobody is told."""
        command("ip", "link", "set", self._name, "down")

    def deafen(self) -> None:
        """Drop all that is sent to it: what it sends still arrives."""
        command("tc", "qdisc", "replace", "dev", self._name, "root", "pfifo", "limit", "0")

    def join(self) -> None:
        """Put it on the network again."""
        discard("tc", "qdisc", "del", "dev", self._name, "root")
        command("ip", "link", "set", self._name, "up")

    def run(
        self, words: Sequence[str], env: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on it, in its `root`."""
        return subprocess.run(
            [*self._enter(), *words],
            env={**os.environ, **env},
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def spawn(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a command on it, which ends with it; its output is in a file beside those of the machine."""
        with (self.directory / "spawned.log").open("ab") as log:
            subprocess.Popen(
                [*self._enter(), *words],
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _enter(self) -> Sequence[str]:
        """Return the words before a command that is to run on it."""
        first = self._first
        assert first is not None
        namespaces = ("nsenter", "--target", str(first.pid), "--net", "--pid", "--mount")
        return (*namespaces, "env", "-C", str(self.root))

    def processes(self, title: str) -> list[psutil.Process]:
        """Its processes with these words in their command lines."""
        found = []
        for pid in self._pids():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if title in " ".join(process.cmdline()) and process.status() != "zombie":
                    found.append(process)
        return found

    def _pids(self) -> list[int]:
        pids = subprocess.run(
            ["ip", "netns", "pids", self._name], capture_output=True, text=True, timeout=60.0, check=False
        )
        return [int(pid) for pid in pids.stdout.split()]
