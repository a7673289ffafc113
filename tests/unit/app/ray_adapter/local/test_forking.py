"""The fork server, with a script in the place of Ray's worker."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.system.processes import process
from app.ray_adapter.local import fork_client
from app.ray_adapter.local.forking import RARE_CHECKS, ForkServer
from app.ray_adapter.local.sessions import new_session
from tests.server import ROOT
from tests.waiting import block_until

WORKER = """
import json, multiprocessing, os, random, resource, signal, sys
names = ("ray.serve._private.replica", "nereid.deployments", "app", "numpy")
prepared = [name in sys.modules for name in names]
threads = len(os.listdir("/proc/self/task"))  # an ended thread may be in the list for a moment after `join`
import numpy, ray
import ctypes, threading, time

libc = ctypes.CDLL(None)


def timer_ms(milliseconds):
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
    spec = (ctypes.c_long * 4)(0, 0, 0, milliseconds * 1_000_000)
    assert libc.timerfd_settime(timer, 0, spec, None) == 0
    assert libc.timerfd_gettime(timer, spec) == 0
    os.close(timer)
    timers.append(spec[2] * 1000 + spec[3] / 1_000_000)


timers = []
for each in (10, 20):
    timer_ms(each)
thread = threading.Thread(target=timer_ms, args=(10,))
thread.start()
thread.join()


class Context:
    def __getattr__(self, name):
        return lambda *arguments, **options: None


known = set(sys.modules)
from anyio._core._eventloop import get_async_backend
from ray.util import serialization_addons
get_async_backend("asyncio")
serialization_addons.apply(Context())
found = {
    "imported": sorted(set(sys.modules) - known),
    "arguments": sys.argv,
    "path": sys.path[0],
    "directory": os.getcwd(),
    "variable": os.environ["VARIABLE"],
    "fixed": [os.environ["RAY_JOB_ID"], os.environ["RAY_RAYLET_PID"], os.environ.get("OMP_NUM_THREADS")],
    "drawn": [random.random(), numpy.random.random(), ray.ObjectRef.from_random().hex(),
        bytes(multiprocessing.current_process().authkey).hex()],
    "prepared": prepared,
    "parent": os.getppid(),
    "pid": os.getpid(),
    "group": os.getpgrp(),
    "oom_score": open("/proc/self/oom_score_adj").read().strip(),
    "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "threads": threads,
    "timers": timers,
    "preloaded": os.environ.get("LD_PRELOAD"),
}
print(json.dumps(found), flush=True)
sys.exit(3)
"""


def process_fault(pid: int) -> str:
    found = process(pid)
    return "has ended" if found is None else found.fault


OPTIONS = ["--node-id=n", "--language=PYTHON"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        server = ForkServer(tmp_path_factory.mktemp("f"), "nereid.workers")
    yield server
    server.close()


def worker_command(directory: Path, *options: str) -> list[str]:
    """Return the command of a raylet for a worker."""
    script = directory / "default_worker.py"
    script.write_text(WORKER)
    return [sys.executable, str(directory / "setup_worker.py"), str(script), *options]


def raylet_command(worker: list[str]) -> list[str]:
    return ["raylet", f"--python_worker_command={subprocess.list2cmdline(worker)}", "--x=1"]


def run(command: list[str], directory: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **variables}
    env.pop("OMP_NUM_THREADS", None)
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=60)


def started(server: ForkServer, directory: Path, variable: str) -> dict[str, Any]:
    """Start a worker as a raylet would; return what it prints."""
    raylet = server.starting_workers(raylet_command(worker_command(directory, *OPTIONS)))
    # As the raylet does, and the driver before it.
    change = "echo 567 > /proc/self/oom_score_adj; ulimit -Sn 700; exec nice -n 3 $*"
    command = ["sh", "-c", change, "sh", *raylet[1].partition("=")[2].split()]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        done = run(command, directory, VARIABLE=variable)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_worker_is_a_fork_with_the_arguments_and_surroundings_of_its_command(
    server: ForkServer, tmp_path: Path
) -> None:
    found = started(server, tmp_path, "a=b c")
    script = tmp_path / "default_worker.py"
    assert found["arguments"] == [str(script), "--node-id=n"]
    assert found["path"] == found["directory"] == str(tmp_path)
    assert found["variable"] == "a=b c"
    assert found["fixed"] == ["ffffffff", str(os.getpid()), None]
    assert found["prepared"] == [True, False, False, True]
    assert found["threads"] == 1
    assert found["oom_score"] == "567"
    assert found["niceness"] == os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert found["blocked"] == [signal.SIGINT]
    assert found["files"] == 700
    assert found["group"] == found["pid"]  # else the end of one would end all
    block_until(lambda: not Path(f"/proc/{found['pid']}").exists())  # nobody waits for it


@pytest.mark.skipif(not RARE_CHECKS.exists(), reason="it is not compiled")
def test_worker_looks_for_signals_ten_times_a_second(server: ForkServer, tmp_path: Path) -> None:
    found = started(server, tmp_path, "")
    check, other, of_a_thread = found["timers"]
    assert 10 < check <= 100  # as much of it as a busy machine has left
    assert other <= 20
    assert of_a_thread <= 10
    assert found["preloaded"] is None  # nor have programs that a model starts


def test_worker_imports_nothing_to_become_a_replica(server: ForkServer, tmp_path: Path) -> None:
    assert started(server, tmp_path, "")["imported"] == []


def test_workers_draw_different_numbers(server: ForkServer, tmp_path: Path) -> None:
    first, second = (started(server, tmp_path, "")["drawn"] for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_worker_is_not_forked_by_a_server_that_hangs_nor_later(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "_PATIENCE_S", 0.05)
    script = tmp_path / "late.py"
    script.write_text(f"open({str(tmp_path / 'late')!r}, 'w')")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert not fork_client._is_forked(str(server.path), [str(script)])
    finally:
        os.kill(server.pid, signal.SIGCONT)
    started(server, tmp_path, "")
    assert not (tmp_path / "late").exists()


GOOD = b"\0".join([b"/", b"0", b"0", b"", b"", b"1", b"script.py"])
"""A request."""


@pytest.mark.parametrize(
    ("sent", "descriptors"),
    [
        (b"no request", 3),
        (GOOD.replace(b"1", b"x"), 3),
        (GOOD.replace(b"1", b"0"), 3),
        (b"\0" * 20, 3),
        (b"\xff", 3),
        (GOOD, 2),
        (GOOD, 0),
        (b"", 0),
    ],
    ids=[
        "words",
        "number",
        "no script",
        "empty words",
        "one word",
        "two descriptors",
        "no descriptors",
        "nothing",
    ],
)
def test_a_request_that_is_none_leaves_no_descriptor(
    server: ForkServer, sent: bytes, descriptors: int, tmp_path: Path
) -> None:
    def held() -> int:
        return len(os.listdir(f"/proc/{server.pid}/fd"))

    started(server, tmp_path, "ready")
    before = held()
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(str(server.path))
            assert client.recv(1) == b"\0"
            if sent:
                socket.send_fds(client, [sent], [0, 1, 2][:descriptors])
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
    block_until(lambda: held() == before)
    started(server, tmp_path, "still")


def test_raylets_other_arguments_stay(server: ForkServer, tmp_path: Path) -> None:
    command = raylet_command(["python", "a b"])
    changed = server.starting_workers(command)
    assert [changed[0], changed[2]] == [command[0], command[2]]
    assert changed[1].endswith('python "a b"')
    assert server.starting_workers(["gcs_server"]) == ["gcs_server"]


def test_worker_is_a_program_of_its_own_without_a_fork_server(tmp_path: Path) -> None:
    client = [sys.executable, "-I", "-S", fork_client.__file__, str(tmp_path / "missing")]
    command = worker_command(tmp_path, *OPTIONS)
    Path(command[1]).write_text("import sys; print(sys.argv[1:])")
    assert run([*client, *command], tmp_path).stdout == f"{command[2:]}\n"


@pytest.mark.parametrize(
    "special",
    ["--serialized-runtime-env-context={}", "--worker-type=SPILL_WORKER", "--language=JAVA"],
)
def test_special_worker_is_a_program_of_its_own(server: ForkServer, tmp_path: Path, special: str) -> None:
    options = [special] if special.startswith("--language") else [*OPTIONS, special]
    command = worker_command(tmp_path, *options)
    Path(command[1]).write_text("print('a program')")
    word = server.starting_workers(raylet_command(command))[1]
    assert run(word.partition("=")[2].split(), tmp_path).stdout == "a program\n"


def test_fork_server_ends_with_a_killed_program_whose_socket_the_next_one_removes(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from app.ray_adapter.local.forking import ForkServer

server = ForkServer(Path(sys.argv[1]), "nereid.workers")
print(server.pid, flush=True)
os._exit(1)
"""
    pid = int(run([sys.executable, "-c", program, str(tmp_path)], ROOT).stdout)
    block_until(lambda: process_fault(pid) == "has ended")
    assert list(tmp_path.glob("*.sock"))
    with new_session(tmp_path):
        assert not list(tmp_path.glob("*.sock"))


def test_socket_of_a_program_that_runs_stays(server: ForkServer, tmp_path: Path) -> None:
    with new_session(server.path.parent):
        assert server.path.exists()
    assert started(server, tmp_path, "still")["variable"] == "still"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("", ""),
        ("ray.ObjectRef.from_random()", "a fork would use the ids of another"),
        (
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "a lock may be held by a thread that a fork lacks",
        ),
    ],
)
def test_process_that_forks_would_harm_is_not_forked(tmp_path: Path, before: str, said: str) -> None:
    program = f"""
import os, threading, time
import ray
from app.ray_adapter.local.fork_server import harm
{before}
print(harm(), flush=True)
os._exit(0)
"""
    assert run([sys.executable, "-c", program], ROOT).stdout == f"{said}\n"
