"""A Ray cluster of two machines with a server on it, started with the settings of `cluster/`."""

import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from tests.long.namespaces import Machine, bridge
from tests.long.node_load import ready
from tests.long.server import say
from tests.server import ROOT, wait_until

REPLICA: Final = "ServeReplica:steady:1"
_BIN: Final = f"{sys.prefix}/bin"
_START_S: Final = 120.0
_TRIES: Final = 3
"""A raylet gives up on a busy machine."""
_MEMORY: Final = "--object-store-memory=100000000"


class Nodes:
    """Two machines, each with room for one replica of the model `steady`, and for one that needs "spare".

    Args:
        directory: where they have their files.
        settings: environment variables of the head's Ray, beside those of `cluster/ray.env`.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self.head, self.worker = (Machine(number, directory / str(number)) for number in (2, 3))
        lines = shlex.split((ROOT / "cluster/ray.env").read_text(), comments=True)
        self._env = dict(line.split("=", 1) for line in lines)
        self._env |= {"RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": str(ROOT)}
        self._settings = settings

    def start_ray(self, machine: Machine) -> None:
        """Start Ray on a machine, as cluster.yaml does."""
        number = machine.address.rpartition(".")[2]
        head = machine is self.head
        where = ["--head", "--port=6379"] if head else [f"--address={self.head.address}:6379"]
        words = [f"{_BIN}/ray", "start", *where, f"--node-ip-address={machine.address}", _MEMORY]
        words += ["--num-cpus=4", '--resources={"seat": 1, "spare": 1}']
        env = {**self._env, "MACHINE": number, **(self._settings if head else {})}
        for left in reversed(range(_TRIES)):
            done = machine.run(words, env, _START_S)
            if not done.returncode:
                return
            if not left:
                sys.exit(f"ray start on {machine.address}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
            machine.run([f"{_BIN}/ray", "stop", "--force"], env, _START_S)

    def deploy(self) -> None:
        """Deploy `cluster/serve.yaml` with the model alone."""
        models = self.directory / "models"
        shutil.copytree(ROOT / "tests/long/models/steady", models / "steady")
        config = yaml.safe_load((ROOT / "cluster/serve.yaml").read_text())
        config["applications"][0]["args"] |= {
            "model_repository": str(models),
            "model_control_mode": "explicit",
            "load_model": ["steady"],
        }
        file = self.directory / "serve.yaml"
        file.write_text(yaml.safe_dump(config))
        self.ray("serve", "deploy", str(file))

    def ray(self, *words: str, timeout: float = 60.0) -> str:
        """Run a command of Ray on the head; return what it prints, or end the program."""
        done: subprocess.CompletedProcess[str] = self.head.run(
            [f"{_BIN}/{words[0]}", *words[1:]], self._env, timeout
        )
        if done.returncode:
            sys.exit(f"{' '.join(words)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def whole(self) -> bool:
        """Whether both machines have a replica of the model, and say that they are ready."""
        machines = (self.head, self.worker)
        return all(len(m.processes(REPLICA)) == 1 and ready(m.address) for m in machines)


@contextmanager
def running(settings: Mapping[str, str]) -> Iterator[Nodes]:
    """Start both machines and the server; see `Nodes` for the arguments."""
    # Not below /tmp, which each machine has for itself.
    directory = Path(tempfile.mkdtemp(prefix="n", dir="/var/tmp"))
    nodes = Nodes(directory, settings)
    try:
        with bridge(), nodes.head.connected(), nodes.worker.connected():
            started = time.monotonic()
            nodes.start_ray(nodes.head)
            nodes.start_ray(nodes.worker)
            nodes.deploy()
            wait_until(nodes.whole, _START_S, "a replica on each machine")
            say(f"started in {time.monotonic() - started:.0f} s")
            yield nodes
    except BaseException:
        say(f"logs of both machines: {directory}/*/tmp/ray/session_latest/logs")
        raise
    shutil.rmtree(directory, ignore_errors=True)
