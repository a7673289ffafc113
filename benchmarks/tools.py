"""Peers that are installed from wheels, each in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRITON_WHEEL = "nvidia-pytriton==0.7.0"
TRITON_PYTHON = "3.12"  # the newest whose stub both the wheel and its numpy<2 pin support
MLSERVER_WHEELS = ("mlserver==1.7.1", "uvloop<0.22")


class MissingTool(RuntimeError):
    """Something that the suite cannot install by itself; the message says how to."""


@dataclass(frozen=True)
class TritonInstall:
    """A tritonserver, laid out as its wheel is not: one backend directory, the stub beside the library."""

    python: Path
    package: Path
    backends: Path
    library_path: str

    @property
    def binary(self) -> Path:
        return self.package / "bin" / "tritonserver"


def install_triton(python: str | None) -> TritonInstall:
    venv = make_venv(
        ROOT / ".venv-peers", find_python(python), [TRITON_WHEEL, f"onnxruntime=={version('onnxruntime')}"]
    )
    site = next((venv / "lib").glob("python3*/site-packages"))
    package, libraries = site / "pytriton" / "tritonserver", site / "nvidia_pytriton.libs"
    named = link_library(libraries, venv / "triton-lib")
    install = TritonInstall(
        python=venv / "bin" / "python",
        package=package,
        backends=lay_out_backends(package, venv / "triton-backends"),
        library_path=f"{named}:{libraries}:{library_directory(venv / 'bin' / 'python')}",
    )
    install.binary.chmod(0o755)
    return install


def link_library(libraries: Path, target: Path) -> Path:
    """Give the server's library the name that C++ backends ask for: the wheel's has a digest in it."""
    link = target / "libtritonserver.so"
    if not link.exists():
        target.mkdir(exist_ok=True)
        link.symlink_to(next(libraries.glob("libtritonserver-*.so")))
    return target


def lay_out_backends(package: Path, target: Path) -> Path:
    stub = target / "python" / "triton_python_backend_stub"
    if not stub.exists():
        shutil.copytree(package / "backends" / "python", target / "python", dirs_exist_ok=True)
        shutil.copy(package / "python_backend_stubs" / TRITON_PYTHON / stub.name, stub)
        stub.chmod(0o755)
    return target


def install_mlserver() -> Path:
    """Install MLServer and return the interpreter of its environment."""
    return make_venv(ROOT / ".venv-mlserver", Path(sys.executable), list(MLSERVER_WHEELS)) / "bin" / "python"


def make_venv(path: Path, python: Path, requirements: list[str]) -> Path:
    """Create and fill the environment once; its stamp names the contents."""
    stamp, wanted = path / "installed.txt", "\n".join(requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return path
    print(f"installing {' '.join(requirements)} into {path.name} ...", file=sys.stderr, flush=True)
    subprocess.run([python, "-m", "venv", "--clear", path], check=True)
    subprocess.run([path / "bin" / "python", "-m", "pip", "install", "-q", *requirements], check=True)
    stamp.write_text(wanted)
    return path


def find_python(given: str | None) -> Path:
    """Return the interpreter that the tritonserver wheel needs: the one given, or any of that version."""
    for candidate in [given] if given else python_candidates():
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            found = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if found.stdout.strip() == TRITON_PYTHON:
            return Path(candidate)
    raise MissingTool(
        f"tritonserver's wheel needs Python {TRITON_PYTHON}: use --triton-python or other --sides"
    )


def python_candidates() -> Iterator[str]:
    if on_path := shutil.which(f"python{TRITON_PYTHON}"):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(map(str, pyenv.glob(f"versions/{TRITON_PYTHON}*/bin/python")), reverse=True)


def library_directory(python: Path) -> str:
    """Return the directory of the interpreter's libpython, to which the stub links."""
    code = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
