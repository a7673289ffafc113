"""Builds what is published: wheels with and without what is compiled, sources, and their digests.

    python -m release.build dist [PYTHON ...]

Sources are a copy of what git tracks, with the manual if `make docs` has built it; wheels are built from
them, as others would. There is a compiled wheel for this Python and for each further one that is named, with
its headers. Where the package ziglang is installed, they are for every Linux with glibc 2.17; otherwise for
this machine's. No other server is asked.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
GLIBC: Final = (2, 17)
"""The oldest glibc that the compiled wheel is for, as every manylinux2014 image has it."""
_SYMBOL: Final = re.compile(rb"GLIBC_(\d+)\.(\d+)")
_BUILD: Final = """
import sys
from setuptools import build_meta
kind, where, *options = sys.argv[1:]
settings = {"--build-option": options} if options else None
sys.argv[1:] = []
print((build_meta.build_wheel if kind == "wheel" else build_meta.build_sdist)(where, settings))
"""


def build(target: Path, pythons: Sequence[str] = (sys.executable,)) -> list[Path]:
    """Build everything into a directory, which is emptied before; return the files.

    `pythons` are the interpreters that get a compiled wheel.

    Raises:
        CalledProcessError: a build has failed; it has said why.
        ValueError: the compiled wheel has not what it is to have.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        tree = copied(Path(work) / "tree")
        sources = _built(tree, "sdist", target)
        shutil.unpack_archive(sources, work)
        server = Path(work) / sources.name.removesuffix(".tar.gz")
        _built(server, "wheel", target, {"NEREID_COMPILE": "never"})
        for python in pythons:
            check_compiled(_compiled(server, target, Path(work), python))
        for kind in ("sdist", "wheel"):
            _built(tree / "client", kind, target)
    files = sorted(target.iterdir())
    (target / "SHA256SUMS").write_text("".join(f"{_digest(file)}  {file.name}\n" for file in files))
    return [*files, target / "SHA256SUMS"]


def copied(source: Path, root: Path = ROOT) -> Path:
    """Copy what git tracks, and the manual: what else lies here is no part of a release."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if name.split("/")[0] in ("tests", "benchmarks", "examples", "model_repository"):
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, source / name)
    if (manual := root / "build" / "manual").is_dir():
        shutil.copytree(manual, source / "manual")
    return source


def _compiled(source: Path, target: Path, work: Path, python: str) -> Path:
    """Build the wheel with what is compiled for a Python; return it."""
    environment, options = {"NEREID_COMPILE": "always"}, []
    machine = platform.machine()
    if find_spec("ziglang") is not None:
        version = ".".join(map(str, GLIBC))
        zig = work / "zigcc"
        # Debian's pyconfig.h is one that includes another, which is where zig does not look.
        includes = f"-idirafter {Path(_include(python)).parent}"
        command = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{version} {includes}"
        zig.write_text(f'#!/bin/sh\nPYTHONPATH= exec {command} "$@"\n')
        zig.chmod(0o755)
        # Without what Debian's Python hands to a linker, of which zig's knows a part.
        environment |= {"CC": str(zig), "LDSHARED": f"{zig} -shared"}
        options = [f"--plat-name=manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"]
    if python != sys.executable:
        environment["PYTHONPATH"] = str(lent_setuptools(work / "setuptools"))
    return _built(source, "wheel", target, environment, *options, python=python)


def _include(python: str) -> str:
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def lent_setuptools(folder: Path) -> Path:
    """Lend this Python's setuptools, which is that of any, to another that has none; return where it is."""
    folder.mkdir(exist_ok=True)
    installed = distribution("setuptools")
    for name in {file.parts[0] for file in installed.files or ()} - {".."}:
        if not (folder / name).exists():
            (folder / name).symlink_to(str(installed.locate_file(name)))
    return folder


def _built(
    source: Path,
    kind: str,
    target: Path,
    environment: Mapping[str, str] = {},
    *options: str,
    python: str = sys.executable,
) -> Path:
    shutil.rmtree(source / "build", ignore_errors=True)
    command = [python, "-c", _BUILD, kind, str(target.resolve()), *options]
    done = subprocess.run(
        command, cwd=source, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
        done.check_returncode()
    return target / done.stdout.split()[-1]


def check_compiled(wheel: Path) -> None:
    """Check that a wheel has both libraries, and that they need no newer glibc than its name says.

    Raises:
        ValueError: it is otherwise.
    """
    with zipfile.ZipFile(wheel) as archive:
        libraries = {name: archive.read(name) for name in archive.namelist() if name.endswith(".so")}
    if len(libraries) != 2:
        raise ValueError(f"{wheel.name} has {sorted(libraries)}, not the two libraries that are compiled")
    if "manylinux" not in wheel.name:
        return
    for name, content in libraries.items():
        newest = max(((int(a), int(b)) for a, b in _SYMBOL.findall(content)), default=GLIBC)
        if newest > GLIBC:
            raise ValueError(f"{name} of {wheel.name} needs glibc {newest[0]}.{newest[1]}")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    where, *further = sys.argv[1:] or ["dist"]
    for made in build(Path(where), [sys.executable, *further]):
        print(f"{made.stat().st_size:>10,}  {made}")
