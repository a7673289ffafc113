"""Processes of Python models that die, do not start, or outlive their replica."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.core.errors import ErrorCode, InferError
from backends.python.backend import PythonBackend
from backends.python.worker import process, supervisor
from backends.python.worker.activation import environment_variables
from backends.python.worker.supervisor import Supervisor, delay
from tests import environments
from tests.unit.backend_harness import Served, config, infer
from tests.unit.backends.python.worker.process_model import MODEL, SECONDS, ask, told
from tests.unit.python_models import IDENTITY, text, write
from tests.waiting import block_until


@pytest.mark.parametrize(("do", "how"), [("ends", "exit status 3"), ("crashes", "signal 11 (SIGSEGV)")])
def test_a_process_that_dies_is_started_again(
    do: str, how: str, python: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(PythonBackend, config(text()), write(tmp_path, MODEL), interpreter=python)
    changes = threading.Semaphore(0)
    served.instance.readiness_changed = changes.release
    state: Supervisor = served.instance.state
    first = state.pid
    call = ask(served, do)
    error = call.responses[0].failure
    assert error is not None
    assert (error.code, error.message) == (
        ErrorCode.UNAVAILABLE,
        "Failed to process the request(s) for model instance 'm_0_0', message: Stub process 'm_0_0' is not"
        f" healthy. It ended with {how}.",
    )
    assert ask(served, "identity").arrays["O"].tolist() == [[1, 1]]  # waits for the new process
    assert state.pid not in (0, first) and served.backend.instance_ready(served.instance)
    assert changes.acquire(timeout=SECONDS)
    assert f"process of instance 'm_0_0' ended with {how}" in caplog.text
    served.close()


def test_a_process_that_dies_beside_its_own_children(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were forked with the sockets to the replica, which do not close with the process."""
    monkeypatch.setattr(process, "_KILLED_S", 0.5)
    served = Served(PythonBackend, config(text()), write(tmp_path, MODEL), interpreter=python)
    (child,) = told(ask(served, "forks"))
    try:
        assert "is not healthy" in ask(served, "crashes").error
        assert ask(served, "identity").arrays["O"].tolist() == [[1, 1]]
    finally:
        os.kill(child, signal.SIGKILL)
    served.close()


def test_children_of_a_process_end_with_it(python: Path, tmp_path: Path) -> None:
    served = Served(PythonBackend, config(text()), write(tmp_path, MODEL), interpreter=python)
    (child,) = told(ask(served, "forks_worker"))
    assert "is not healthy" in ask(served, "crashes").error
    block_until(lambda: _has_ended(child), "they are killed")
    served.close()


def test_a_model_that_keeps_the_interpreter_lock_is_ready(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LIMIT_S", 0.01)
    gate, entered = tmp_path / "gate", tmp_path / "entered"
    lock = f"ctypes.PyDLL(None).flock(open({str(gate)!r}).fileno(), {fcntl.LOCK_EX})"
    body = f"        open({str(entered)!r}, 'w'); {lock}; responses = []"
    source = "import ctypes\n" + IDENTITY.replace("        responses = []", body)
    with gate.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        served = Served(PythonBackend, config(text()), write(tmp_path, source), interpreter=python)
        executing = threading.Thread(target=served, args=(infer({"I": np.ones((1, 2), np.float32)}),))
        executing.start()
        block_until(entered.exists)
        assert [served.backend.instance_ready(served.instance) for _ in range(3)] == [True] * 3
    executing.join(SECONDS)
    served.close()


def _has_ended(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)  # until init waits for it
    except psutil.NoSuchProcess:
        return True


def test_an_execution_is_interrupted_by_the_end_of_its_process(python: Path, tmp_path: Path) -> None:
    served = Served(PythonBackend, config(text()), write(tmp_path, MODEL), interpreter=python)
    first = served.instance.state.pid
    threading.Timer(0.2, served.backend.interrupt, (served.instance,)).start()
    error = ask(served, "hangs").responses[0].failure
    assert error is not None and error.message.endswith("It ended with signal 9 (SIGKILL).")
    assert ask(served, "identity").arrays["O"].tolist() == [[1, 1]]
    assert served.instance.state.pid not in (0, first)
    served.close()


def test_an_execution_in_the_replica_cannot_be_interrupted(tmp_path: Path) -> None:
    served = Served(PythonBackend, config(text()), write(tmp_path, IDENTITY))
    assert not served.backend.interrupt(served.instance)
    served.close()


def test_requests_and_readiness_while_it_dies_again_and_again(python: Path, tmp_path: Path) -> None:
    source = IDENTITY.replace(
        "    def execute", "    def initialize(self, args):\n        START\n    def execute"
    )
    flag = tmp_path / "broken"
    start = f"import os; assert not os.path.exists({str(flag)!r})"
    folder = write(tmp_path, source.replace("START", start))
    served = Served(PythonBackend, config(text()), folder, interpreter=python)
    flag.touch()
    os.kill(served.instance.state.pid, signal.SIGKILL)
    block_until(lambda: not served.backend.instance_ready(served.instance), "not ready")
    request = infer({"I": np.ones((1, 2), np.float32)})

    def refused() -> bool:
        try:
            (call,) = served(request)
        except InferError as error:
            assert error.code is ErrorCode.UNAVAILABLE and "is not healthy" in error.message
            return True
        return call.responses[0].failure is None

    block_until(refused, "refused")
    assert not served.backend.instance_ready(served.instance)
    flag.unlink()
    block_until(lambda: served.backend.instance_ready(served.instance), "ready again")
    (call,) = served(request)
    assert call.arrays["O"].tolist() == [[1, 1]]
    served.close()


def test_delay_between_crashes() -> None:
    assert [delay(crashes) for crashes in (1, 2, 3, 4, 100)] == [0, 0.5, 1, 2, 30]


def test_models_that_do_not_load(python: Path, tmp_path: Path) -> None:
    def error_of(folder: Path, interpreter: Path, **settings: str) -> str:
        with pytest.raises(InferError) as caught:
            Served(PythonBackend, config(text()), folder, settings, interpreter)
        return caught.value.message

    folder = write(tmp_path / "a", "import no_such_module")
    assert error_of(folder, python).startswith(
        "ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n"
    )
    folder = write(tmp_path / "b", "import os\nprint('a last word', flush=True)\nos._exit(4)")
    message = error_of(folder, python)
    assert "Stub process 'm_0_0' is not healthy." in message
    assert "exit status 4" in message and "a last word" in message
    assert "unable to start" in error_of(folder, tmp_path / "nothing")
    bare = environments.make(tmp_path / "bare", borrow_numpy=False)
    assert "has no numpy, which every model needs" in error_of(folder, bare)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o700)
    message = error_of(folder, slow, **{"stub-timeout-seconds": "0.1"})
    assert message.startswith("Timed out occurred while waiting for the stub process (0.1 s).")
    assert "must be a number" in error_of(folder, python, **{"stub-timeout-seconds": "soon"})


def test_process_ends_with_its_replica(python: Path, tmp_path: Path) -> None:
    folder = write(tmp_path, MODEL)
    source = f"""
import os, signal
from pathlib import Path
from backends.python.backend import PythonBackend
from tests.unit.backend_harness import Served, config
from tests.unit.python_models import text
made = Served(PythonBackend, config(text()), Path({str(folder)!r}), interpreter=Path({str(python)!r}))
print(made.instance.state.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[5]
    done = subprocess.run([sys.executable, "-c", source], cwd=root, capture_output=True, timeout=60)
    pid = int(done.stdout)
    block_until(lambda: not Path(f"/proc/{pid}").exists(), "the process has ended")


def test_environment_variables(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    inherited = {"PYTHONPATH": "/ours", "VIRTUAL_ENV": "/ours", "HOME": "/h", "PATH": "/bin"}
    assert environment_variables(tmp_path / "bin" / "python", inherited) == {
        "HOME": "/h",
        "PATH": f"{tmp_path}/bin:/bin",
        "PYTHONUNBUFFERED": "1",
        "CONDA_PREFIX": str(tmp_path),
        "LD_LIBRARY_PATH": f"{tmp_path}/lib",
    }


def test_packages_of_a_conda_environment_are_activated(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    scripts = tmp_path / "etc" / "conda" / "activate.d"
    scripts.mkdir(parents=True)
    (scripts / "a.sh").write_text('export DATA="$CONDA_PREFIX/data\nx" ONE=1\necho said\nNOT=exported\n')
    (scripts / "b.sh").write_text("export ONE=2\nunset HOME\nfalse\n")
    (scripts / "c.fish").write_text("exit 1\n")
    found = environment_variables(tmp_path / "bin" / "python", {"HOME": "/h", "PATH": os.environ["PATH"]})
    assert (found["DATA"], found["ONE"]) == (f"{tmp_path}/data\nx", "2")
    assert not {"HOME", "NOT"} & found.keys()
    (scripts / "b.sh").write_text("echo because >&2\nexit 3\n")
    with pytest.raises(InferError, match=f"{tmp_path} ended with exit status 3: said\nbecause$"):
        environment_variables(tmp_path / "bin" / "python", {"PATH": os.environ["PATH"]})
