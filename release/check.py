"""Checks what `release.build` has made, as who installs it meets it, and lists what is installed with it.

    python -m release.check dist [--wheels DIRECTORY] [--without-ray] [PYTHON ...]

A fresh environment gets the compiled wheel, starts the server with a model made by `nereid new`, and asks it,
once more where there is nothing but libraries and Python; then the wheel without what is compiled takes its
place, and the same is asked of `nereid dev`. So it is of the wheel for each further Python that is named.
Packages come from a directory and nowhere else, if one is named (each Python's
`pip download -d DIRECTORY -c constraints.txt .` fills it), otherwise from pip's index. A CycloneDX document
beside the wheels lists them, by the package cyclonedx-bom.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
_READY_S: Final = 180.0
_STOP_S: Final = 60.0
_ASKED: Final = {"inputs": [{"name": "INPUT", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


def check(dist: Path, wheels: Path | None, with_ray: bool, pythons: Sequence[str] = ()) -> None:
    """Check the wheels of a directory; write what is installed with them beside them.

    `pythons` are further interpreters, each of which has a wheel of its own.

    Raises:
        CalledProcessError: an installation or a command has failed.
        ValueError: a server does not answer as it is to, or there is no wheel for a Python.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        install = installed(sys.executable, dist, wheels, folder)
        inventory(folder / "venv" / "bin" / "python", dist)
        nereid = str(folder / "venv" / "bin" / "nereid")
        if with_ray:
            ask([nereid, "--model-repository=models"], folder, "native")
        ask([nereid, "dev", "models"], folder, "native")
        if os.geteuid() == 0 and shutil.which("unshare"):
            ask([*_bare(folder), nereid, "dev", str(folder / "models")], folder, "native")
        (plain,) = dist.glob("nereid_server-*-none-any.whl")
        subprocess.run([*install, "--no-deps", "--force-reinstall", "--no-index", str(plain)], check=True)
        ask([nereid, "dev", "models"], folder, "python")
    for python in pythons:
        with tempfile.TemporaryDirectory() as work:
            installed(python, dist, wheels, Path(work))
            nereid = f"{work}/venv/bin/nereid"
            if with_ray:
                ask([nereid, "--model-repository=models"], Path(work), "native")
            ask([nereid, "dev", "models"], Path(work), "native")


def installed(python: str, dist: Path, wheels: Path | None, folder: Path) -> list[str]:
    """Install the compiled wheel into an environment of a Python, and make a model; return pip's command."""
    tag = [python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"]
    version = subprocess.run(tag, check=True, capture_output=True, text=True).stdout.strip()
    found = list(dist.glob(f"nereid_server-*-{version}-{version}-*.whl"))
    if len(found) != 1:
        raise ValueError(f"{dist} has not one compiled wheel for {python} ({version})")
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
    programs = folder / "venv" / "bin"
    install = [str(programs / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    source = ["--no-index", "-f", str(wheels)] if wheels else []
    subprocess.run([*install, *source, "-c", str(ROOT / "constraints.txt"), str(found[0])], check=True)
    new = [str(programs / "nereid"), "new", "doubler", "--python", "--repository", "models"]
    subprocess.run(new, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    print(f"{found[0].name} installed", flush=True)
    return install


def _bare(folder: Path) -> list[str]:
    """Return what runs a command where nothing is but libraries, Python and the server; needs root."""
    root, program = folder / "bare", os.path.realpath(sys.executable)
    kept = ["/lib", "/lib64", "/usr/lib", "/proc", "/dev", sysconfig.get_path("stdlib")]
    kept += [str(folder / "venv"), str(folder / "models")]
    lines = ["set -e", f"mkdir -p {root}/tmp {root}{os.path.dirname(program)}", f"touch {root}{program}"]
    lines.append(f"mount --bind {program} {root}{program}")
    for place in filter(os.path.isdir, kept):
        lines.append(f"mkdir -p {root}{place} && mount --rbind {place} {root}{place}")
    lines.append(f'exec chroot {root} "$@"')
    return ["unshare", "--mount", "sh", "-c", "\n".join(lines), "sh"]


def inventory(python: Path, dist: Path) -> None:
    """Write what is installed in an environment as a CycloneDX document, if what writes it is here."""
    if find_spec("cyclonedx_py") is None:
        print("no list of what is installed: the package cyclonedx-bom is missing (extra `release`)")
        return
    (plain,) = dist.glob("nereid_server-*-none-any.whl")
    target = dist / f"{'-'.join(plain.name.split('-')[:2])}.cdx.json"
    write = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"]
    write += ["--validate", "--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"]
    subprocess.run([*write, "-o", str(target), str(python)], check=True)
    written = json.loads(target.read_text())
    listed = {component["name"] for component in written["components"]}
    if written["metadata"]["component"]["name"] != "nereid-server" or not {"ray", "numpy"} <= listed:
        raise ValueError(f"{target} does not list what is installed")


def ask(command: Sequence[str], folder: Path, plane: str) -> None:
    """Start a server, and check its first answers, its pages and its data plane.

    Raises:
        ValueError: one is not what it is to be.
    """
    with _server(command, folder) as url:
        answer = json.loads(_got(f"{url}/v2/models/doubler/infer", json.dumps(_ASKED).encode()))
        if answer["outputs"][0]["data"] != [2.0, 4.0]:
            raise ValueError(f"the model answers {answer}")
        page = _got(url, accept="text/html").decode()
        if "<b>doubler</b>" not in page or f"<dd>{plane}<" not in page:
            raise ValueError(f"the page at {url} has not the model and the data plane {plane}")
        if "Search" not in _got(f"{url}/manual/").decode():
            raise ValueError("the wheel has no manual: `make docs` builds it")
    bare = " where there is nothing else" if command[0] == "unshare" else ""
    print(f"{Path(command[-2]).name} {command[-1]}{bare}: answers, data plane {plane}", flush=True)


@contextmanager
def _server(command: Sequence[str], folder: Path) -> Iterator[str]:
    ports = [_free_port() for _ in range(3)]
    flags = [f"--{kind}-port={port}" for kind, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (folder / "server.log").open("w") as log:
        running = subprocess.Popen(
            [*command, *flags], cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        _wait_ready(url, running, folder / "server.log")
        yield url
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise


def _wait_ready(url: str, running: "subprocess.Popen[Any]", log: Path) -> None:
    end = time.monotonic() + _READY_S
    while time.monotonic() < end and running.poll() is None:
        try:
            _got(f"{url}/v2/health/ready")
            return
        except OSError:
            time.sleep(0.2)
    raise ValueError(f"the server is not ready:\n{log.read_text()[-4000:]}")


def _got(url: str, body: bytes | None = None, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(url, body, {"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m release.check")
    parser.add_argument("dist", type=Path)
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="a further interpreter")
    parser.add_argument("--wheels", type=Path, help="where all packages come from")
    parser.add_argument("--without-ray", action="store_true", help="start no server with Ray")
    asked = parser.parse_intermixed_args()
    wheels = asked.wheels.resolve() if asked.wheels else None
    check(asked.dist.resolve(), wheels, not asked.without_ray, asked.pythons)


if __name__ == "__main__":
    _main()
