"""The server of a node that forks the processes of models, in a directory of its own."""

import os
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

from deployments.model_process import start as starts
from deployments.model_process.activity import Activity
from deployments.model_process.start import Start, Started, start_process
from deployments.replica.replica import Place
from tests.unit.deployments.model_process.process_bench import alive, servers, until

pytestmark = pytest.mark.timeout(60)

SPEC = b"\xc0"
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
    with started(sockets) as process:
        ended(process)
    (server,) = servers(sockets)
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
    with started(sockets) as process:
        ended(process)
    (server,) = servers(sockets)
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
    with started(sockets) as process:
        ended(process)
    (server,) = servers(sockets)
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
    with started(sockets) as process:
        ended(process)
    (server,) = servers(sockets)
    os.kill(server, signal.SIGKILL)
    with started(sockets) as process:
        assert ended(process) == 1
    assert not alive(server)


def test_a_server_that_hangs_is_replaced(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(sockets) as process:
        ended(process)
    (server,) = servers(sockets)
    os.kill(server, signal.SIGSTOP)
    ask, waits = starts._ask, iter([0.2])

    def ask_impatiently(request: bytes, activity: int, path: str) -> Started:
        monkeypatch.setattr(starts, "_ANSWER_S", next(waits, 30.0))
        return ask(request, activity, path)

    monkeypatch.setattr(starts, "_ask", ask_impatiently)
    try:
        with started(sockets) as process:
            assert ended(process) == 1
        (other,) = set(servers(sockets)) - {server}
    finally:
        os.kill(server, signal.SIGCONT)
    until(lambda: not psutil.Process(server).children())
    with started(sockets) as process:
        assert ended(process) == 1
    assert alive(other)


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
