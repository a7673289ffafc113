"""Runs `ray up cluster/cluster.yaml` and `serve deploy` on machines that are network namespaces of this one.

A head and a worker, each with a process and mount namespace, an address on a bridge and an ssh server; a
model is asked at both, also after a second `ray up`, which starts the head anew and leaves a worker alone
whose files and commands are the same, and after a third, with a changed file, which starts every process of
Ray anew. Needs root, iproute2, util-linux, openssh-server and rsync; ends what it has started.
"""

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from tests.long.namespaces import NETWORK, Machine, bridge, command, require
from tests.long.node_load import answer
from tests.long.server import say
from tests.server import ROOT, wait_until

_HEAD: Final = f"{NETWORK}.2"
_WORKER: Final = f"{NETWORK}.3"
_MODEL: Final = "add_one"
_SSHD: Final = """\
ListenAddress {address}
HostKey {directory}/host_key
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
"""
_PLANTS: Final = {"same-processes": ("--no-restart",)}
_INIT: Final = """\
mount --bind {directory}/passwd /etc/passwd
mkdir -p /run/sshd
exec {sshd} -D -e -f {directory}/sshd_config
"""


def machine(number: int, directory: Path, public_key: Path) -> Machine:
    """A machine with an ssh server; `directory` has its home and its temporary files."""
    made = Machine(number, directory, _INIT.format(directory=directory, sshd=shutil.which("sshd")))
    (directory / "home/.ssh").mkdir(parents=True, mode=0o700)
    (directory / "home/.bashrc").touch()
    shutil.copy(public_key, directory / "home/.ssh/authorized_keys")
    root, *others = Path("/etc/passwd").read_text().splitlines()
    fields = root.split(":")
    fields[5] = str(directory / "home")
    (directory / "passwd").write_text("\n".join([":".join(fields), *others, ""]))
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "host_key"))
    (directory / "sshd_config").write_text(_SSHD.format(address=made.address, directory=directory))
    return made


def cluster_file(directory: Path) -> Path:
    """Write `cluster/cluster.yaml` for these machines; they use this installation, not one of their own."""
    config = yaml.safe_load((ROOT / "cluster/cluster.yaml").read_text())
    config["provider"] |= {"head_ip": _HEAD, "worker_ips": [_WORKER]}
    config |= {"min_workers": 1, "max_workers": 1}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": str(directory / "key")}
    config["file_mounts"]["~/.ray/auth_token"] = str(directory / "token")
    config["file_mounts"]["~/release"] = str(directory / "release")
    config["setup_commands"][-1] = f"ln -sfn {sys.prefix} ~/nereid-server/.venv"
    config["rsync_exclude"] += ["model_repository/*/[0-9]*/*.*"]
    written = directory / "cluster.yaml"
    written.write_text(yaml.safe_dump(config))
    return written


def _ray(environment: dict[str, str], words: Sequence[str], timeout: float) -> None:
    done = subprocess.run(
        [f"{sys.prefix}/bin/ray", *words],
        env=environment,
        cwd=ROOT,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"ray {words[0]} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def run(more: Sequence[str]) -> None:
    """Start the cluster and the server, and ask both machines; `more` are flags of the second `ray up`."""
    with ExitStack() as stack:
        # Not below /tmp, which each machine has for itself.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nereid-", dir="/var/tmp")))
        directory.chmod(0o711)
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key"))
        (directory / "token").touch(0o600)
        (directory / "token").write_text(secrets.token_hex(32))
        (directory / "release").write_text("1")
        stack.enter_context(bridge())
        made = [machine(number, directory / str(number), directory / "key.pub") for number in (2, 3)]
        for each in made:
            stack.enter_context(each.connected())
        file = str(cluster_file(directory))
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(directory / "token")}
        environment = {**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0"}
        _timed("ray up", lambda: _ray(environment, ["up", "-y", "--no-config-cache", file], 600))
        models = shutil.copytree(ROOT / "tests/long/models" / _MODEL, directory / "models" / _MODEL).parent
        deploy = f"sed 's#/srv/models#{models}#' cluster/serve.yaml > /tmp/serve.yaml"
        deploy = f"cd nereid-server && {deploy} && RAY_AUTH_MODE=token .venv/bin/serve deploy /tmp/serve.yaml"
        _timed("serve deploy", lambda: _ray(environment, ["exec", "--no-config-cache", file, deploy], 300))
        _wait_for_answers()
        # The server goes on by what the head has on its disk. A worker's processes are started by the head's
        # monitor, after `ray up` has returned, if what the worker has been started with differs.
        again = partial(_start_anew, environment, ["up", "-y", "--no-config-cache", *more, file])
        again("ray up again", made[:1])
        (directory / "release").write_text("2")
        again("ray up with a changed file", made)


def _start_anew(
    environment: dict[str, str], words: Sequence[str], what: str, anew: Sequence[Machine]
) -> None:
    before = [_processes(each) for each in anew]
    _timed(what, lambda: _ray(environment, words, 600))
    for each, old in zip(anew, before, strict=True):
        ends = f"{each.address}: the processes of before end"
        _timed(ends, partial(wait_until, partial(_are_gone, old, each), 120, f"{what}: {ends}"))
    _wait_for_answers()


def _processes(of: Machine) -> set[int]:
    """Return the processes of Ray on a machine."""
    return {process.pid for title in ("raylet/raylet", "ray::") for process in of.processes(title)}


def _are_gone(processes: set[int], of: Machine) -> bool:
    return not processes & _processes(of)


def _wait_for_answers() -> None:
    for name, address in (("head", _HEAD), ("worker", _WORKER)):
        _timed(f"the {name} answers", partial(_wait_for_answer, address))


def _wait_for_answer(address: str) -> None:
    wait_until(lambda: answer(address, _MODEL) == [2, 3], 240, f"{address} answers")


def _timed(what: str, work: Callable[[], object]) -> None:
    started = time.monotonic()
    work()
    say(f"{what}: {time.monotonic() - started:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: sudo .venv/bin/python -m tests.long.ray_up",
    )
    parser.add_argument("--plant", default="", choices=list(_PLANTS), help="a fault that is to be found")
    given = parser.parse_args()
    require("sshd", "ssh-keygen", "rsync")
    run(_PLANTS.get(given.plant, ()))


if __name__ == "__main__":
    main()
