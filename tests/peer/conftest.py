"""Two servers over the same models: Nereid and a tritonserver, whose command TRITONSERVER names."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from tests.server import ROOT, Server, free_port, wait_until

OWN_MODELS = ("sums", "types", "plain", "word", "adder", "fails", "script", "chain", "late", "relay")
EXAMPLE_MODELS = ("square_int32", "identity_fp32")
LOADS = [f"--load-model={model}" for model in (*OWN_MODELS, *EXAMPLE_MODELS)]
START_S = 120.0
STOP_S = 30.0


class Peer(NamedTuple):
    """`host:port` of HTTP and gRPC, and a channel of gRPC."""

    http: str
    grpc_url: str
    grpc: grpc.Channel


class Tritonserver:
    """The other server; it is started again when a request has ended it."""

    def __init__(self, repository: Path, log: Path) -> None:
        self._log = log
        self._directory = repository.parent
        self._ports = [free_port() for _ in range(3)]
        flags = zip(("http-port", "grpc-port", "metrics-port"), self._ports, strict=True)
        self._command = [
            *shlex.split(os.environ["TRITONSERVER"]),
            f"--model-repository={repository}",
            "--model-control-mode=explicit",
            *LOADS,
            *(f"--{name}={port}" for name, port in flags),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        http, url = (f"127.0.0.1:{port}" for port in self._ports[:2])
        self.peer = Peer(http, url, grpc.insecure_channel(url))

    def revive(self) -> bool:
        """Start the server unless it runs; whether it had to be."""
        if self._process is not None and self._process.poll() is None:
            return False
        with self._log.open("ab") as log:
            # Elsewhere, or its Python models would import this project's triton_python_backend_utils.
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            )
        ready = f"http://{self.peer.http}/v2/health/ready"
        wait_until(
            lambda: not subprocess.call(["curl", "-sf", "-o", os.devnull, ready]), START_S, "it is ready"
        )
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:  # it waits for its models, and some versions do for ever
                self._process.kill()
                self._process.wait()


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models both servers serve."""
    models = tmp_path_factory.mktemp("peer") / "models"
    shutil.copytree(Path(__file__).parent / "models", models)
    for model in EXAMPLE_MODELS:
        shutil.copytree(ROOT / "model_repository" / model, models / model)
    return models


@pytest.fixture(scope="session")
def theirs(repository: Path) -> Iterator[Tritonserver]:
    if "TRITONSERVER" not in os.environ:
        pytest.skip("TRITONSERVER names no command")
    server = Tritonserver(repository, repository.parent / "tritonserver.log")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def ours(repository: Path) -> Iterator[Peer]:
    arguments = [f"--model-repository={repository}", "--model-control-mode=explicit", *LOADS]
    server = Server([*arguments, "--allow-client-shm=true"], repository.parent / "nereid.log").start()
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield Peer(server.http_url, server.grpc_url, channel)
    server.stop()
