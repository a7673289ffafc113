"""A Ray cluster of machines with a server on it, started with the settings of `cluster/`."""

import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import yaml

from tests.long.namespaces import Machine, bridge
from tests.long.node_load import ready
from tests.long.plants import planted
from tests.long.server import say
from tests.server import ROOT, wait_until

STEADY: Final = "steady"
MANAGER: Final = "ServeReplica:nereid:repository-manager"
RESTORED: Final = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": "/tmp/gcs"}
"""Settings of a head that finds its state again on its disk; a machine's /tmp survives here."""
_REPLICA: Final = re.compile(r"ServeReplica:([^:]+:\d+)(?:@\d+)?:")
_BIN: Final = f"{sys.prefix}/bin"
_START_S: Final = 120.0
_TRIES: Final = 3
"""A raylet gives up on a busy machine."""
_LOOK_S: Final = 1.0
_MEMORY: Final = "--object-store-memory=100000000"
_KEPT: Final = "until {bin}/ray start --address={head}:6379 {more} --block; do sleep 5; done"
"""As `worker_start_ray_commands` of cluster.yaml and the unit of systemd."""


class Nodes:
    """A head and workers.

    Args:
        directory: where they have their files.
        settings: environment variables of the head's Ray, beside those of `cluster/ray.env`.
        workers: how many.
        root: where commands run, and Python finds the server: Ray's workers look there first.
        packages: where Python finds what that lacks.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        workers: int = 1,
        root: Path = ROOT,
        packages: str = str(ROOT),
    ) -> None:
        self.directory = directory
        self.models = directory / "models"
        self.machines = [Machine(number, directory / str(number)) for number in range(2, 3 + workers)]
        for machine in self.machines:
            machine.root = root
        self.head, *self.workers = self.machines
        self.worker = self.workers[0]
        lines = shlex.split((ROOT / "cluster/ray.env").read_text(), comments=True)
        self._env = dict(line.split("=", 1) for line in lines)
        self._env |= {"RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": packages}
        self._settings = settings

    def start_ray(self, machine: Machine) -> None:
        """Start Ray on a machine, as cluster.yaml does: a worker joins again when its Ray has ended."""
        env = {**self._env, "MACHINE": machine.address.rpartition(".")[2]}
        more = [f"--node-ip-address={machine.address}", _MEMORY, "--num-cpus=4"]
        if machine is not self.head:
            kept = _KEPT.format(bin=_BIN, head=self.head.address, more=shlex.join(more))
            machine.spawn(["sh", "-c", kept], env)
            return
        words = [f"{_BIN}/ray", "start", "--head", "--port=6379", *more]
        for left in reversed(range(_TRIES)):
            done = machine.run(words, {**env, **self._settings}, _START_S)
            if not done.returncode:
                return
            if not left:
                sys.exit(f"ray start on {machine.address}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
            machine.run([f"{_BIN}/ray", "stop", "--force"], env, _START_S)

    def has_ray(self, machine: Machine) -> bool:
        """Whether Ray runs on a machine."""
        time.sleep(_LOOK_S)
        return bool(machine.processes("raylet/raylet"))

    def write(self, name: str) -> None:
        """Write a copy of the model `steady` to the repository."""
        shutil.copytree(ROOT / "tests/long/models/steady", self.models / name)

    def deploy(self, models: Sequence[str]) -> None:
        """Deploy `cluster/serve.yaml` with copies of the model `steady` alone."""
        for name in models:
            self.write(name)
        config = yaml.safe_load((ROOT / "cluster/serve.yaml").read_text())
        config["applications"][0]["args"] |= {
            "model_repository": str(self.models),
            "model_control_mode": "explicit",
            "load_model": list(models),
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

    def replicas(self) -> dict[str, list[str]]:
        """Return the addresses of the machines that a version has replicas on, one for each replica."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for machine in self.machines:
            for process in machine.processes("ServeReplica:"):
                with suppress(psutil.Error):
                    if named := _REPLICA.search(" ".join(process.cmdline())):
                        found[named[1]].append(machine.address)
        return dict(found)

    def unspread(self, *versions: str, count: int = 2) -> dict[str, list[str]]:
        """Return the versions that have not so many replicas, each on a machine of its own."""
        replicas = self.replicas()
        found = {version: sorted(replicas.get(version, [])) for version in versions}
        return {version: at for version, at in found.items() if not len(at) == len(set(at)) == count}

    def whole(self, *versions: str, count: int = 2) -> bool:
        """Whether each version is spread, and all machines say that they are ready."""
        time.sleep(_LOOK_S)  # a look costs some of a processor
        are_ready = all(ready(each.address) for each in self.machines)
        return are_ready and not self.unspread(*versions, count=count)

    def manager(self) -> tuple[Machine, int]:
        """Return the machine of the repository manager, and its process."""
        ((machine, process),) = [(m, p.pid) for m in self.machines for p in m.processes(MANAGER)]
        return machine, process


@contextmanager
def running(
    settings: Mapping[str, str], workers: int = 1, models: Sequence[str] = (STEADY,), plant: str = ""
) -> Iterator[Nodes]:
    """Start machines and the server with copies of `steady`, perhaps with a fault of `plants.py`.

    See `Nodes` for the arguments.
    """
    # Not below /tmp, which each machine has for itself.
    directory = Path(tempfile.mkdtemp(prefix="n", dir="/var/tmp"))
    try:
        with ExitStack() as stack:
            root, env = stack.enter_context(planted(plant))
            nodes = Nodes(directory, settings, workers, root, env.get("PYTHONPATH", str(ROOT)))
            stack.enter_context(bridge())
            for machine in nodes.machines:
                stack.enter_context(machine.connected())
            started = time.monotonic()
            for machine in nodes.machines:
                nodes.start_ray(machine)
            for machine in nodes.workers:
                wait_until(lambda of=machine: nodes.has_ray(of), _START_S, "its raylet runs")  # type: ignore[misc]
            nodes.deploy(models)
            versions = [f"{model}:1" for model in models]
            wait_until(lambda: nodes.whole(*versions), _START_S + 5 * len(models), "replicas on two machines")
            say(f"started in {time.monotonic() - started:.0f} s")
            yield nodes
    except BaseException:
        say(f"logs of the machines: {directory}/*/tmp/ray/session_latest/logs")
        raise
    shutil.rmtree(directory, ignore_errors=True)
