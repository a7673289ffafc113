"""A replica whose model runs in a process of its own: its load, its ends, and what ends it."""

import asyncio
import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from deployments.model_process import host, start
from deployments.spec import UPDATE
from tests.unit.deployments.model_process.process_bench import ProcessBench, alive, until

DAEMON = """if value == 8 and os.fork() == 0:
                os.setsid()
                time.sleep(30)
                os._exit(0)"""


def test_a_repository_may_have_any_name(bench: ProcessBench) -> None:
    bench.models = bench.directory / os.fsdecode(b"caf\xe9")
    bench.write(initialize=r"assert b'/caf\xe9/' in os.fsencode(args['model_repository'] + __file__)")
    replica = bench.load()
    assert bench.infer() == 2
    assert replica._description.spec.directory == str(bench.models / "m")


def test_the_model_runs_in_another_process(bench: ProcessBench) -> None:
    bench.write()
    replica = bench.load()
    assert bench.infer(2) == 3
    assert set(replica.addresses) == {"unix", "tcp", "host_unix", "host_tcp"}
    assert bench.pid not in (0, os.getpid())
    assert psutil.Process(bench.pid).cmdline()[0].startswith("nereid: model m:1")


@pytest.mark.parametrize(
    ("initialize", "reason"),
    [
        ("raise pb_utils.TritonModelException('no luck')", "no luck"),
        ("os._exit(3)", r"Stub process 'm_0_0' is not healthy. It ended with exit code 3"),
        ("print('a last word'); os.abort()", r"by signal 6 \(SIGABRT\): a last word"),
        ("os.kill(os.getpid(), 9)", "by signal 9"),
        ("os.closerange(3, 4096)", "by signal 6"),
    ],
)
def test_a_load_that_fails_says_why(
    bench: ProcessBench, initialize: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_DESCRIBE_S", 100.0)
    bench.write(initialize=initialize)
    began = time.monotonic()
    description = bench.start()
    assert re.search(reason, description.error), description.error
    assert time.monotonic() - began < 25 and bench.pid == 0, "it waits for something"


def test_a_process_that_ends_is_started_again_at_the_same_addresses(bench: ProcessBench) -> None:
    bench.write("if value == 9: os._exit(3)")
    replica = bench.load()
    addresses, pid = dict(replica.addresses), bench.pid
    answer = bench.submit(9).result(60)
    assert answer.failure is not None and "ended with exit code 3" in answer.failure.message
    bench.until_another(pid)
    assert replica.addresses == addresses and bench.infer(1) == 2
    assert bench.pauses == 1 and bench.loads == 1


def test_many_ends_leave_no_descriptors(bench: ProcessBench) -> None:
    bench.write()
    bench.load()

    def again() -> None:
        pid = bench.pid
        os.kill(pid, signal.SIGKILL)
        bench.until_another(pid)

    again()
    before = len(os.listdir("/proc/self/fd"))
    (server,) = bench.servers()
    held = len(os.listdir(f"/proc/{server}/fd"))
    for _ in range(int(os.environ.get("RESTARTS", "5"))):
        again()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert len(os.listdir(f"/proc/{server}/fd")) == held


def test_an_execution_beyond_its_limit_ends_the_process(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_ANSWER_S", 0.1)
    bench.write("if value == 9: HOLDING.sleep(60)")
    bench.load(seconds=0.4)
    pid = bench.pid
    assert bench.submit(9).result(60).failure is not None
    bench.until_another(pid)
    assert not alive(pid)


def test_a_process_that_answers_nothing_and_executes_nothing_is_ended(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_LOOK_S", 0.1)
    bench.write("if value == 9: threading.Timer(0.3, HOLDING.sleep, (60,)).start()")
    bench.load(peer_timeout=1.0)
    pid = bench.pid
    assert bench.infer(9) == 10
    monkeypatch.setattr(host, "_ANSWER_S", 0.2)
    bench.until_another(pid)


def test_a_process_that_is_busy_is_not_ended(bench: ProcessBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_LOOK_S", 0.1)
    bench.write("if value == 9: HOLDING.sleep(2)")
    bench.load(peer_timeout=0.5)
    pid = bench.pid
    bench.submit(9)
    until(lambda: bench.replica is not None and bench.replica._busy_s())
    with monkeypatch.context() as patched:
        patched.setattr(host, "_ANSWER_S", 0.1)
        time.sleep(1.5)
        assert bench.pid == pid
    until(lambda: bench.replica is not None and not bench.replica._busy_s())
    assert bench.pid == pid and bench.infer(1) == 2


def test_a_process_that_is_stopped_is_ended(bench: ProcessBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_LOOK_S", 0.1)
    monkeypatch.setattr(host, "_ANSWER_S", 0.2)
    bench.write()
    bench.load(peer_timeout=0.5)
    pid = bench.pid
    os.kill(pid, signal.SIGSTOP)
    bench.until_another(pid)


def test_close_finishes_what_is_executed(bench: ProcessBench) -> None:
    bench.write("time.sleep(0.5)", finalize="open(__file__ + '.ended', 'w')")
    replica = bench.load()
    answer, pid = bench.submit(), bench.pid
    until(replica._activity.busy_s)
    bench.plane.call(replica._close(), 30)
    assert answer.result(0).failure is None
    until(lambda: not alive(pid))
    assert (bench.directory / "m/1/model.py.ended").exists()


def test_a_model_that_leaves_a_daemon_is_started_again(bench: ProcessBench) -> None:
    """What it forks has its sockets too: nobody could listen there again."""
    bench.write(DAEMON)
    bench.load()
    pid = bench.pid
    assert bench.infer(8) == 9
    os.kill(pid, signal.SIGKILL)
    bench.until_another(pid)
    assert bench.infer(1) == 2


def test_what_a_model_has_started_ends_with_it(bench: ProcessBench) -> None:
    bench.write("subprocess.Popen(['sleep', '600'])")
    bench.load()
    pid = bench.pid
    bench.infer()
    (child,) = psutil.Process(pid).children()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(child.pid))


@pytest.mark.parametrize("first", ["3", "0"])
def test_a_model_that_closes_its_descriptors(bench: ProcessBench, first: str) -> None:
    bench.write(f"if value == 9: os.closerange({first}, 4096)")
    bench.load()
    pid = bench.pid
    bench.submit(9)
    bench.until_another(pid, 20)  # its silence would be noticed later
    assert bench.infer(1) == 2


def test_a_model_without_output_or_signals_goes_on(bench: ProcessBench) -> None:
    blocks = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))"
    bench.write(f"if value == 9: os.close(1); os.close(2); {blocks}")
    replica = bench.load()
    pid = bench.pid
    assert bench.infer(9) == 10 and bench.infer(1) == 2
    bench.plane.call(replica._close(), 10)
    until(lambda: not alive(pid))


def test_running_models_survive_their_fork_server(bench: ProcessBench) -> None:
    bench.write()
    bench.load()
    (server,) = bench.servers()
    os.kill(server, signal.SIGKILL)
    pid = bench.pid
    assert bench.infer(1) == 2
    os.kill(pid, signal.SIGKILL)
    bench.until_another(pid)
    assert bench.infer(1) == 2 and bench.servers() != [server]


def test_a_load_that_never_ends_is_given_up_with_the_replica(bench: ProcessBench) -> None:
    says = "open(args['model_repository'] + '/pid', 'w').write(str(os.getpid()))"
    bench.write(initialize=f"{says}; HOLDING.sleep(600)")
    threading.Thread(target=bench.start, daemon=True).start()
    path = bench.directory / "m" / "pid"
    until(lambda: path.exists() and path.read_text())
    until(lambda: bench.replica is not None and bench.replica._run is not None)
    assert bench.replica is not None and bench.replica._run is not None
    bench.replica._run._started.lifeline.close()
    until(lambda: not alive(int(path.read_text())))


def test_its_children_end_when_the_worker_that_has_started_it_is_killed(bench: ProcessBench) -> None:
    """The kernel closes the lifeline then; nobody else tells them."""
    bench.write("subprocess.Popen(['sleep', '600']); value == 9 and HOLDING.sleep(600)")
    replica = bench.load()
    bench.submit(9)
    until(lambda: psutil.Process(bench.pid).children())
    pid, (child,) = bench.pid, psutil.Process(bench.pid).children()
    assert replica._run is not None
    replica._run._started.lifeline.close()
    until(lambda: not alive(pid) and not alive(child.pid))


def test_it_has_the_surroundings_of_the_server(bench: ProcessBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_NEREID_UMASK", "27")
    monkeypatch.setenv("RAY_NEREID_THREADS", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SURROUNDED", "gr\u00fcn\n=1")
    bench.write()
    monkeypatch.chdir(bench.directory)
    found = "os.getcwd(), os.environ.get('SURROUNDED'), sorted(os.environ), os.getsid(0) == os.getpid()"
    bench.write(f"open(__file__ + '.found', 'w').write(repr(({found})))")
    bench.load()
    bench.infer()
    path = bench.directory / "m/1/model.py.found"
    directory, given, names, own_session = eval(path.read_text())
    assert (directory, given, own_session) == (str(bench.directory), "gr\u00fcn\n=1", True)
    assert not [name for name in names if name.startswith("RAY_")] and "OMP_NUM_THREADS" not in names
    assert path.stat().st_mode & 0o777 == 0o640


def test_two_versions_of_a_model_have_processes_of_their_own(bench: ProcessBench, sockets: Path) -> None:
    bench.write()
    bench.load()
    pid = bench.pid
    second = ProcessBench(sockets)
    second.socket = "second/replica.sock"
    try:
        second.load()
        assert second.pid not in (0, pid) and len(bench.servers()) == 1
        killed = second.pid
        os.kill(killed, signal.SIGKILL)
        second.until_another(killed)
        assert bench.pid == pid and bench.infer(1) == second.infer(1) == 2
    finally:
        second.unload()


def test_much_output_delays_nothing_for_long(bench: ProcessBench, capfd: pytest.CaptureFixture[str]) -> None:
    lines = "1_000_000" if "MUCH" in os.environ else "20_000"
    bench.write(f"print((chr(120) * 99 + chr(10)) * {lines}, flush=True)")
    replica = bench.load()
    assert bench.infer(1) == 2
    run = replica._run
    assert run is not None
    until(lambda: list(run._output.last)[-2:] == ["x" * 99, ""], 50)
    assert capfd.readouterr().out.count("m: ") > 10_000


def test_a_close_does_not_wait_for_a_load(bench: ProcessBench) -> None:
    path = "__file__ + '.first'"
    bench.write(initialize=f"time.sleep(600) if os.path.exists({path}) else os.mkdir({path})")
    replica = bench.load()
    first, pid = replica._run, bench.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: replica._run is not first)
    bench.plane.call(replica._close(), 30)
    assert bench.pid == 0


def test_a_close_while_the_process_is_started_again(bench: ProcessBench) -> None:
    bench.write()
    replica = bench.load()
    (server,) = bench.servers()  # later a process that it has just forked may hold its socket too
    pid = bench.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: bench.pauses)
    bench.plane.call(replica._close(), 30)
    until(lambda: not psutil.Process(server).children())


async def test_a_change_of_instances_outlives_the_process(bench: ProcessBench) -> None:
    bench.write()
    replica = bench.load()
    changed = mc.ModelConfig.FromString((await replica.describe()).spec.config)
    changed.instance_group.add(count=2, kind=mc.ModelInstanceGroup.KIND_CPU)
    await bench.control(UPDATE, changed.SerializeToString())
    assert (await replica.describe()).spec.config == changed.SerializeToString()
    pid = bench.pid
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(bench.until_another, pid)
    assert (await replica.describe()).spec.config == changed.SerializeToString()


def test_a_fork_server_that_cannot_start_is_a_reason(
    bench: ProcessBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "SERVER_PYTHON", Path("/bin/false"))
    bench.write()
    expected = "Internal: unable to start a process for model 'm'"
    assert bench.start().error.startswith(expected)
