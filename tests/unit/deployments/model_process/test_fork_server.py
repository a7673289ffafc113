"""The server of a node that forks the processes of models, in a directory of its own."""

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from deployments.model_process import fork_server
from deployments.model_process import start as starts
from deployments.model_process.activity import Activity
from deployments.model_process.start import Started, start_process
from deployments.model_process.start_message import Start
from deployments.replica.replica import Place
from tests.unit.deployments.model_process.process_bench import alive, servers, until

SPEC = b"null"
"""No specification: the process says so and ends."""


@contextmanager
def started(directory: Path, spec: bytes = SPEC) -> Iterator[Started]:
    activity = Activity()
    start = Start(spec, Place("node", "", "127.0.0.1"), "", os.getpid(), 0)
    found = start_process("m:1", start, activity.descriptor, str(directory))
    os.close(activity.descriptor)
    try:
        yield found
    finally:
        found.lifeline.close()
        found.status.close()
        os.close(found.pidfd)
        os.close(found.output)


def ended(process: Started) -> int:
    """Wait until it has ended, and the server has let go of it; return its exit code."""
    process.status.settimeout(20)
    status = process.status.recv(4)
    assert process.status.recv(1) == b""
    return os.waitstatus_to_exitcode(int.from_bytes(status, "little"))


def server_after_a_start(sockets: Path) -> int:
    """Have a process started, and wait until it has ended; return the only server."""
    with started(sockets) as process:
        ended(process)
    (server,) = servers(sockets)
    return server


def output(process: Started) -> str:
    with os.fdopen(os.dup(process.output), "rb") as pipe:
        return pipe.read().decode()


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_it_tells_how_a_process_has_ended_and_what_it_wrote(sockets: Path) -> None:
    with started(sockets) as process:
        assert ended(process) == 1
        assert "msgspec.ValidationError" in output(process)
        assert select.select([process.pidfd], [], [], 0)[0]
        assert not psutil.pid_exists(process.pid)


def test_many_processes_leave_no_descriptors(sockets: Path) -> None:
    server = server_after_a_start(sockets)
    held = descriptors(server), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with started(sockets) as process:
            ended(process)
    until(lambda: (descriptors(server), len(os.listdir("/proc/self/fd"))) == held)


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"", 0),
        (b"", 3),
        (b"\xff\xff", 3),
        (b"\xc1", 3),
        (b"nonsense", 2),
        (msgspec.msgpack.encode((1, 2)), 3),
        (msgspec.msgpack.encode(5), 3),
    ],
)
def test_a_malformed_request_does_no_harm(sockets: Path, data: bytes, number: int) -> None:
    server = server_after_a_start(sockets)
    held = descriptors(server)
    with socket.socket(socket.AF_UNIX) as sock, open(os.devnull) as nothing:
        sock.connect(str(sockets / "models.sock"))
        if data and number:
            socket.send_fds(sock, [data], [nothing.fileno()] * number)
        sock.shutdown(socket.SHUT_WR)
        assert not sock.recv(4)
    until(lambda: descriptors(server) == held)
    with started(sockets) as process:
        assert ended(process) == 1
    assert servers(sockets) == [server]


def test_a_starter_that_goes_away_leaves_nothing(sockets: Path) -> None:
    server = server_after_a_start(sockets)
    held = descriptors(server)
    with socket.socket(socket.AF_UNIX) as sock, open(os.devnull) as nothing:
        sock.connect(str(sockets / "models.sock"))
        near, far = socket.socketpair()
        request = msgspec.msgpack.encode((str(sockets), 0o22, {}, "m", b"\xc0"))
        socket.send_fds(sock, [request], [far.fileno(), nothing.fileno(), nothing.fileno()])
        near.close()
        far.close()
    until(lambda: descriptors(server) == held and not psutil.Process(server).children())


def test_starters_at_once_get_one_server(sockets: Path) -> None:
    def one(_: int) -> int:
        with started(sockets) as process:
            return ended(process)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, range(8))) == [1] * 8
    assert len(servers(sockets)) == 1


def test_it_ends_when_nobody_asks(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_IDLE_S", 0.1)
    with started(sockets) as process:
        ended(process)
    until(lambda: not servers(sockets))
    with started(sockets) as process:  # and another one is started
        assert ended(process) == 1


def test_it_survives_who_has_started_it(sockets: Path) -> None:
    program = (
        "import sys; from pathlib import Path;"
        "from tests.unit.deployments.model_process.test_fork_server import started, ended;\n"
        "with started(Path(sys.argv[1])) as process: ended(process)"
    )
    subprocess.run([sys.executable, "-c", program, str(sockets)], check=True, timeout=60)
    (server,) = servers(sockets)
    assert psutil.Process(server).cmdline()[0].rstrip() == "nereid: fork server of models"
    with started(sockets) as process:
        assert ended(process) == 1
    assert servers(sockets) == [server]


def test_a_server_that_was_killed_is_replaced(sockets: Path) -> None:
    server = server_after_a_start(sockets)
    os.kill(server, signal.SIGKILL)
    with started(sockets) as process:
        assert ended(process) == 1
    assert not alive(server)


@pytest.mark.parametrize("free", [0, 1, 3, 4])
def test_a_server_without_descriptors_says_so_and_goes_on(sockets: Path, free: int) -> None:
    """It needs one for the connection, and three for the request."""
    server = server_after_a_start(sockets)
    until(lambda: not psutil.Process(server).children())
    limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{server}/fd")}
    unused = [number for number in range(max(used) + 8) if number not in used]
    resource.prlimit(server, resource.RLIMIT_NOFILE, (unused[free], limits[1]))
    if free < 4:
        with pytest.raises(OSError, match="Too many open files"), started(sockets):
            pass
    else:
        with started(sockets) as process:
            assert ended(process) == 1
    until(lambda: {int(name) for name in os.listdir(f"/proc/{server}/fd")} == used)
    resource.prlimit(server, resource.RLIMIT_NOFILE, limits)
    with started(sockets) as process:
        assert ended(process) == 1
    assert servers(sockets) == [server] and not psutil.Process(server).children()


def test_a_server_that_cannot_fork_says_so_and_goes_on(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = fork_server.Request(b"/", 0, {}, "m", b"", list(os.pipe()))

    def fails() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fails)
    monkeypatch.setattr(fork_server, "_received", lambda _: request)
    near, far = socket.socketpair()
    near.shutdown(socket.SHUT_WR)
    assert fork_server._served(far) == (None, 0)
    assert near.recv(100) == bytes(4) + b"fork: Resource temporarily unavailable"
    near.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(request.descriptors[0])


def test_a_process_that_cannot_be_watched_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", fails)
    child = subprocess.Popen(["sleep", "60"])
    near, far = socket.socketpair()
    near.shutdown(socket.SHUT_WR)
    assert not fork_server._started(child.pid, far)
    assert near.recv(100)[4:] == b"opening a descriptor of the process: Too many open files"
    near.close()
    assert child.wait(60) == 0 and not psutil.pid_exists(child.pid), "it was waited for"


def test_a_server_that_is_stopped_is_replaced_before_the_time_of_its_imports(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "_READY_S", 0.5)
    with monkeypatch.context() as soon:
        soon.setattr(starts, "_IDLE_S", 0.5)
        with started(sockets) as process:
            ended(process)
    (server,) = servers(sockets)
    os.kill(server, signal.SIGSTOP)
    with started(sockets) as process:
        assert ended(process) == 1
    (second,) = set(servers(sockets)) - {server}
    os.kill(server, signal.SIGCONT)
    until(lambda: servers(sockets) == [second])
    assert (sockets / "models.sock").exists(), "the first leaves the socket of the second alone"


def test_sockets_of_servers_that_were_killed_are_removed(sockets: Path) -> None:
    """Each start of a Nereid server has a fork server of its own, which is killed at its end."""
    dead, living = sockets / "models-0123abcd.sock", sockets / "models-abcd.sock"
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        one.bind(str(dead))
        other.bind(str(living))
        other.listen()
        one.close()
        with started(sockets) as process:
            ended(process)
        assert not dead.exists() and living.exists()
