"""What a Python model finds in its process and may do there, as in Triton's stub."""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http

from tests.cluster.conftest import write_python_model
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CONFIG = """
backend: "python"
input { name: "WHAT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "FOUND" data_type: TYPE_STRING dims: [ 1 ] }
"""
MODEL = """
import asyncio, atexit, ctypes, multiprocessing, os, signal, sys, threading, time, weakref
import numpy as np
import triton_python_backend_utils as pb_utils
import app, backends, deployments, nereid

LOOP = asyncio.get_event_loop()
signal.signal(signal.SIGUSR1, lambda *_: None)


def double(x):
    return 2 * x


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.made_in = threading.current_thread() is threading.main_thread()
        atexit.register(open, self.folder + "/at-exit", "w")
        weakref.finalize(self, open, self.folder + "/finalized", "w")
        self.loop = asyncio.get_event_loop()

    def execute(self, requests):
        responses = []
        for request in requests:
            what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
            found = np.array([str(getattr(self, what)())], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", found)]))
        return responses

    def neighbours(self):
        return [module.MINE for module in (app, backends, deployments, nereid)]

    def main_thread(self):
        return self.made_in and threading.current_thread() is threading.main_thread()

    def event_loop(self):
        async def three():
            await asyncio.sleep(0)
            return 3
        return self.loop.run_until_complete(three()), type(self.loop).__module__

    def alarm(self):
        came = []
        signal.signal(signal.SIGALRM, lambda *_: came.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        deadline = time.monotonic() + 10
        while not came and time.monotonic() < deadline:
            time.sleep(0.001)
        return came

    def handlers(self):
        default = [signal.getsignal(each) is signal.SIG_DFL for each in (signal.SIGTERM, signal.SIGCHLD)]
        return default + [signal.pthread_sigmask(signal.SIG_BLOCK, ())]

    def pools(self):
        done = []
        for _ in range(10):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                done += pool.map(double, [1])
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            process.start()
            process.terminate()
            process.join(10)
            done.append(process.exitcode)
        return done

    def threads(self):
        import threadpoolctl
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

    def environment(self):
        return sorted(name for name in os.environ if "RAY" in name), os.environ.get("OMP_NUM_THREADS")

    def loaded(self):
        ours = ("app", "backends", "deployments", "nereid")
        others = [name for name in sys.modules if name.partition(".")[0] in ours]
        return sorted(others), "ray" in sys.modules, "uvloop" in str(type(asyncio.get_event_loop_policy()))

    def writes(self):
        path = self.folder + "/written"
        open(path, "w").close()
        return oct(os.stat(path).st_mode & 0o777)

    def prints(self):
        print("a line that the model prints")
        return ""

    def directory(self):
        return os.getcwd()

    def cluster(self):
        import ray
        try:
            ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
            return ray.get(ray.remote(lambda: 42).remote())
        finally:
            ray.shutdown()
"""


class Asked:
    """The model, by what it is asked for."""

    def __init__(self, server: Server, repository: Path) -> None:
        self.server = server
        self.folder = repository / "surrounded"
        self.client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=100)

    def __call__(self, what: str) -> str:
        tensor = tritonclient.http.InferInput("WHAT", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([what.encode()], dtype=object))
        return str(self.client.infer("surrounded", [tensor]).as_numpy("FOUND")[0].decode())


@pytest.fixture(scope="module")
def ask(server: Server, repository: Path) -> Iterator[Asked]:
    write_python_model(repository, "surrounded", CONFIG, MODEL)
    asked = Asked(server, repository)
    for number, name in enumerate(("app", "backends", "deployments", "nereid")):
        (asked.folder / "1" / f"{name}.py").write_text(f"MINE = {number}\n")
    asked.client.load_model("surrounded")
    yield asked
    asked.client.close()


def test_files_beside_the_model_have_the_servers_names(ask: Asked) -> None:
    assert ask("neighbours") == "[0, 1, 2, 3]"
    assert ask("loaded") == "(['app', 'backends', 'deployments', 'nereid'], False, False)"


def test_loop_signals_and_thread_are_pythons(ask: Asked) -> None:
    assert ask("main_thread") == "True"
    assert ask("event_loop") == "(3, 'asyncio.unix_events')"
    assert ask("alarm") == "[1]"
    assert ask("handlers") == "[True, True, set()]"


def test_forked_processes_end(ask: Asked) -> None:
    assert ask("pools") == str([2, -15] * 10)


def test_threads_environment_and_directory_are_the_servers(ask: Asked) -> None:
    processors = len(os.sched_getaffinity(0))
    assert ask("threads") in (f"{{{processors}}}", "set()")
    assert ask("environment") == "([], None)"
    assert ask("directory") == os.getcwd()


def test_files_have_the_mode_of_the_servers_umask(ask: Asked) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert ask("writes") == oct(0o666 & ~umask)
    assert stat.S_IMODE((ask.folder / "written").stat().st_mode) == 0o666 & ~umask


def test_what_it_prints_has_its_name(ask: Asked) -> None:
    ask("prints")
    line = "surrounded: a line that the model prints"
    wait_until(lambda: line in ask.server.output(), 10.0, "the line is there")


@pytest.mark.slow
def test_it_may_start_a_cluster_of_its_own(ask: Asked) -> None:
    assert ask("cluster") == "42"


def test_exit_runs_what_was_registered(ask: Asked) -> None:
    """The last test of the model: it is unloaded."""
    ask.client.unload_model("surrounded")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (ask.folder / "at-exit").exists():
        time.sleep(0.05)
    assert (ask.folder / "at-exit").exists() and (ask.folder / "finalized").exists()
