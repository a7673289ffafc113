"""Runs `ray up cluster/cluster.yaml` and `serve deploy` on machines that are network namespaces of this one.

A head and a worker, each with a process and mount namespace, an address on a bridge and an ssh server; a
model is asked at both. Needs root, iproute2, util-linux, openssh-server and rsync; ends what it has started.
"""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.long.server import say
from tests.server import ROOT, wait_until

_BRIDGE: Final = "nereidbr"
_NETWORK: Final = "10.99.77"
_HEAD: Final = f"{_NETWORK}.2"
_WORKER: Final = f"{_NETWORK}.3"
_MODEL: Final = "add_one"
_NEEDED: Final = ("ip", "unshare", "sshd", "ssh-keygen", "rsync")
_SSHD: Final = """\
ListenAddress {address}
HostKey {directory}/host_key
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
"""
_ENTER: Final = """\
mount --make-rprivate /
mount --bind {directory}/passwd /etc/passwd
mount --bind {directory}/tmp /tmp
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/sshd
exec {sshd} -D -e -f {directory}/sshd_config
"""


def command(*words: str, timeout: float = 60.0) -> None:
    """Run a command; its output is shown when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")


@contextmanager
def bridge() -> Iterator[None]:
    """A bridge between the machines, with an address of ours on it."""
    command("ip", "link", "add", _BRIDGE, "type", "bridge")
    try:
        command("ip", "addr", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE)
        command("ip", "link", "set", _BRIDGE, "up")
        yield
    finally:
        command("ip", "link", "del", _BRIDGE)


@contextmanager
def machine(address: str, directory: Path, public_key: Path) -> Iterator[None]:
    """A namespace with an ssh server at an address; `directory` has its home and its temporary files."""
    name = f"nereid{address.rpartition('.')[2]}"
    command("ip", "netns", "add", name)
    try:
        command("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        command("ip", "link", "set", name, "master", _BRIDGE, "up")
        for words in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            command("ip", "-n", name, *words.split())
        command("ip", "-n", name, "route", "add", "default", "via", f"{_NETWORK}.1")
        with _ssh_server(name, address, directory, public_key):
            yield
    finally:
        command("ip", "netns", "del", name)


@contextmanager
def _ssh_server(name: str, address: str, directory: Path, public_key: Path) -> Iterator[None]:
    (directory / "tmp").mkdir(parents=True)
    (directory / "home/.ssh").mkdir(parents=True, mode=0o700)
    (directory / "home/.bashrc").touch()
    shutil.copy(public_key, directory / "home/.ssh/authorized_keys")
    root, *others = Path("/etc/passwd").read_text().splitlines()
    fields = root.split(":")
    fields[5] = str(directory / "home")
    (directory / "passwd").write_text("\n".join([":".join(fields), *others, ""]))
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "host_key"))
    (directory / "sshd_config").write_text(_SSHD.format(address=address, directory=directory))
    enter = _ENTER.format(directory=directory, sshd=shutil.which("sshd"))
    namespaces = ("unshare", "--pid", "--mount", "--fork", "--kill-child")
    with (directory / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, *namespaces, "sh", "-ec", enter], stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.kill()  # and with it every process of the namespace
        process.wait()


def cluster_file(directory: Path) -> Path:
    """Write `cluster/cluster.yaml` for these machines; they use this installation, not one of their own."""
    config = yaml.safe_load((ROOT / "cluster/cluster.yaml").read_text())
    config["provider"] |= {"head_ip": _HEAD, "worker_ips": [_WORKER]}
    config |= {"min_workers": 1, "max_workers": 1}
    config["auth"] = {"ssh_user": "root", "ssh_private_key": str(directory / "key")}
    config["file_mounts"]["~/.ray/auth_token"] = str(directory / "token")
    config["setup_commands"][-1] = f"ln -sfn {sys.prefix} ~/nereid-server/.venv"
    config["rsync_exclude"] += ["model_repository/*/[0-9]*/*.*"]
    written = directory / "cluster.yaml"
    written.write_text(yaml.safe_dump(config))
    return written


def answer(address: str) -> Any:
    """Ask the model at a machine; None without an answer."""
    tensor = {"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    body = json.dumps({"inputs": [tensor]}).encode()
    try:
        url = f"http://{address}:8000/v2/models/{_MODEL}/infer"
        with urllib.request.urlopen(url, body, timeout=5) as response:
            return json.load(response)["outputs"][0]["data"]
    except OSError:
        return None


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


def run() -> None:
    """Start the cluster and the server, and ask both machines."""
    with ExitStack() as stack:
        # Not below /tmp, which each machine has for itself.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nereid-", dir="/var/tmp")))
        directory.chmod(0o711)
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key"))
        (directory / "token").touch(0o600)
        (directory / "token").write_text(secrets.token_hex(32))
        stack.enter_context(bridge())
        for address in (_HEAD, _WORKER):
            stack.enter_context(machine(address, directory / address, directory / "key.pub"))
        file = str(cluster_file(directory))
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(directory / "token")}
        environment = {**os.environ, **token, "RAY_USAGE_STATS_ENABLED": "0"}
        _timed("ray up", lambda: _ray(environment, ["up", "-y", "--no-config-cache", file], 600))
        models = shutil.copytree(ROOT / "tests/long/models" / _MODEL, directory / "models" / _MODEL).parent
        deploy = f"sed 's#/srv/models#{models}#' cluster/serve.yaml > /tmp/serve.yaml"
        deploy = f"cd nereid-server && {deploy} && RAY_AUTH_MODE=token .venv/bin/serve deploy /tmp/serve.yaml"
        _timed("serve deploy", lambda: _ray(environment, ["exec", "--no-config-cache", file, deploy], 300))
        for name, address in (("head", _HEAD), ("worker", _WORKER)):
            what = f"the {name} answers"
            _timed(what, lambda at=address, what=what: wait_until(lambda: answer(at) == [2, 3], 300, what))  # type: ignore[misc]


def _timed(what: str, work: Callable[[], object]) -> None:
    started = time.monotonic()
    work()
    say(f"{what}: {time.monotonic() - started:.0f} s")


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: sudo .venv/bin/python -m tests.long.ray_up",
    ).parse_args()
    missing = [name for name in _NEEDED if not shutil.which(name)]
    if os.getuid() or missing:
        sys.exit(f"needs root and {', '.join(_NEEDED)}; missing: {', '.join(missing) or 'root'}")
    run()


if __name__ == "__main__":
    main()
