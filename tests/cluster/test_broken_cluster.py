"""What happens to a server whose raylet, GCS, controller, manager or agents end or are stopped."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import shared_memory

from tests.cluster.conftest import write_model
from tests.cluster.load import Load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

NOTICED_S = 1.0
EXIT_S = 10.0
SLACK_S = 5.0
"""Of a machine that runs other things too."""
RAYLET = "raylet/raylet"
GCS = "gcs/gcs_server"
CONTROLLER = "ServeController"  # Ray writes its name before it while a method runs
MANAGER = "ServeReplica:nereid:repository-manager"
INGRESS = "ServeReplica:nereid:ingress"
AGENT = "/stand_in.py"


@contextmanager
def running(directory: Path, *arguments: str, temporary: str = "") -> Iterator[Server]:
    write_model(directory / "repository", "good")
    arguments = (f"--model-repository={directory / 'repository'}", *arguments)
    server = Server(arguments, directory / "log", {"TMPDIR": temporary} if temporary else {}).start()
    try:
        # Before it has said so itself, the program would start again.
        wait_until(lambda: "1 of 1 models are ready" in server.output(), 10.0, "the program is ready")
        yield server
    finally:
        server.stop(signal.SIGKILL)


def parts(server: Server, title: str) -> list[psutil.Process]:
    """The processes of a server with these words in their command lines."""
    assert server.process is not None
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if title in " ".join(process.cmdline()[:4]):
                found.append(process)
    return found


def part(server: Server, title: str) -> psutil.Process:
    """The first of them."""
    found = parts(server, title)
    assert found, f"no {title}"
    return found[0]


def others(server: Server, hurt: psutil.Process) -> bool:
    """Whether an ingress runs that is not this one; a process may end while it is looked at."""
    return bool(set(server.replicas("nereid:ingress")) - {hurt.pid})


def grpc_ready(server: Server) -> bool:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        return bool(client.is_server_ready(client_timeout=5))


def answers(server: Server) -> bool:
    tensor = tritonclient.http.InferInput("INPUT0", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 16), np.float32))
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        return bool((client.infer("good", [tensor]).as_numpy("OUTPUT0") == 1).all())


def check_noticed(server: Server) -> None:
    """It says at once over both protocols that it is not ready, and still answers."""
    wait_until(lambda: not server.ready(), NOTICED_S + SLACK_S, "not ready over HTTP")
    assert not grpc_ready(server)
    assert answers(server)


def check_exit(server: Server, family: list[psutil.Process], since: float, reason: str) -> None:
    """The program ends with a reason and leaves nothing behind."""
    assert server.process is not None
    assert server.process.wait(EXIT_S + SLACK_S) == 1
    assert time.monotonic() - since < EXIT_S + SLACK_S
    assert reason in server.output()
    assert psutil.wait_procs(family, timeout=5)[1] == []


def register_memory(server: Server) -> None:
    """Register shared memory as a client that forgets it."""
    name = f"/nereid-test-{os.getpid()}"
    region = shared_memory.create_shared_memory_region("left", name, 64)
    try:
        with tritonclient.http.InferenceServerClient(server.http_url) as client:
            client.register_system_shared_memory("left", name, 64)
    finally:
        shared_memory.destroy_shared_memory_region(region)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("lasting")) as server:
        yield server


@pytest.mark.parametrize("title", [CONTROLLER, MANAGER])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_serve_repairs_is_waited_for(lasting: Server, title: str, number: signal.Signals) -> None:
    hurt = part(lasting, title)
    with Load(lasting.http_port, "good", 2) as load:
        hurt.send_signal(number)
        if number == signal.SIGSTOP:
            check_noticed(lasting)
        else:  # a fork may be in its place before anybody looks
            assert answers(lasting)
            wait_until(lambda: not hurt.is_running(), EXIT_S, "the end of the one that was killed")
        wait_until(lasting.ready, 40.0, "ready again")
    assert load.failures == []
    assert not hurt.is_running()
    # Ray gives a process its title only after it has begun to work.
    wait_until(lambda: bool(parts(lasting, title)), EXIT_S, "another in its place")


def test_stopped_ingress_is_replaced(lasting: Server) -> None:
    hurt = part(lasting, INGRESS)
    hurt.send_signal(signal.SIGSTOP)
    wait_until(lambda: others(lasting, hurt) and lasting.ready(), 40.0, "another ingress")
    assert not hurt.is_running()


@pytest.mark.parametrize(
    ("title", "number", "reason"),
    [
        (RAYLET, signal.SIGKILL, "error: Ray's raylet has ended"),
        (GCS, signal.SIGSTOP, "error: Ray's GCS is stopped"),
    ],
)
def test_program_ends_with_its_cluster(
    tmp_path: Path, title: str, number: signal.Signals, reason: str
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="n") as private,
        running(tmp_path, "--allow-client-shm=true", temporary=private) as server,
    ):
        assert server.process is not None
        family = psutil.Process(server.process.pid).children(recursive=True)
        register_memory(server)
        files = Path(private, f"nereid-{os.getuid()}")
        assert list(files.glob("*.sock")) and list(files.glob("regions-*"))
        since = time.monotonic()
        part(server, title).send_signal(number)
        check_noticed(server)
        check_exit(server, family, since, reason)
        assert not list(files.glob("*.sock")) and not list(files.glob("regions-*"))


def test_program_ends_when_an_agent_takes_the_raylet_along(tmp_path: Path) -> None:
    """The raylet then ends its workers too."""
    with running(tmp_path) as server:
        assert server.process is not None
        family = psutil.Process(server.process.pid).children(recursive=True)
        since = time.monotonic()
        part(server, AGENT).kill()
        check_exit(server, family, since, "The raylet exited immediately because one Ray agent failed")


def test_stop_without_a_raylet_is_bounded(tmp_path: Path) -> None:
    with running(tmp_path, "--exit-timeout-secs=1") as server:
        assert server.process is not None
        family = psutil.Process(server.process.pid).children(recursive=True)
        part(server, RAYLET).send_signal(signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        since = time.monotonic()
        assert server.process.wait(1 + EXIT_S + SLACK_S) == 1
        assert time.monotonic() - since < 1 + EXIT_S + SLACK_S
        assert psutil.wait_procs(family, timeout=5)[1] == []


JOB = """
import ray

ray.init()

@ray.remote(num_cpus=0, runtime_env={"env_vars": {"GIVEN": "yes"}})
def given():
    import os
    return os.environ["GIVEN"]

print(ray.get(given.remote()))
"""


def test_application_with_a_runtime_environment_runs_in_the_cluster(lasting: Server) -> None:
    """Ray's agent for them is started when it is needed."""
    raylet = part(lasting, RAYLET)
    (gcs,) = (word.split("=")[1] for word in raylet.cmdline() if word.startswith("--gcs-address="))
    env = {"RAY_ADDRESS": gcs, "RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    command = [sys.executable, "-c", JOB]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines()[-1:] == ["yes"], done.stderr[-4000:]
