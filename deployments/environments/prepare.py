"""The Python environment that a Python model brings along, ready to be used on this node.

In this order: the parameter EXECUTION_ENV_PATH of its configuration, an archive (conda-pack's) or a
directory; a directory `venv` beside model.py or in the model's directory; a `requirements.txt` there, if the
server was told to install such packages. The last two may also be beside the model.py of a Python-based
backend, for all its models that bring none. Archives are unpacked and packages installed once a node for the
same content.
"""

import os
import posixpath
import subprocess
import sys
import tarfile
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Final

import msgspec

from app.core.errors import InferError, internal, invalid_arg, unavailable
from backends.base import Model
from deployments.environments.requirements import contents
from deployments.model_store.cache import Lease, NodeCache, private_root

_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_PATH: Final = "EXECUTION_ENV_PATH"
_SETTING: Final = "--backend-config=python,requirements"
_SAID: Final = 4000
_INSTALL_S: Final = 600.0


class Environment(msgspec.Struct):
    """What a model is executed with; no `python` means the server's own. `unused` is a list of packages that
    were not installed."""

    python: Path | None = None
    lease: Lease | None = None
    unused: Path | None = None

    def release(self) -> None:
        """Let a copy on this node be removed when room is needed."""
        if self.lease is not None:
            self.lease.release()

    def explained(self, error: InferError) -> InferError:
        """The error of a load, with a word on packages that are missing because nobody installed them."""
        if self.unused is None or "ModuleNotFoundError" not in error.message:
            return error
        text = (
            f"{error.message}\n'{self.unused}' is not installed by default; {_SETTING}=install gives each"
            " such model an environment of its own"
        )
        return InferError(error.code, text, error.reason)


def prepare(model: Model, cache_bytes: int) -> Environment:
    """Find, unpack or install the environment of a model. Blocks.

    Args:
        model: of any backend; only models that Python code executes have environments.
        cache_bytes: bound of what is unpacked and installed on this node.

    Raises:
        InferError: INVALID_ARG for a path that leads out of its directory or an archive that does,
            INTERNAL for an environment that is not there or cannot be installed, UNAVAILABLE without room.
    """
    if model.config.backend != "python" and model.common_file is None:
        return Environment()
    cache = NodeCache(private_root() / "environments", cache_bytes)
    declared = model.parameter(_PATH)
    if declared:
        return _declared(model, declared, cache, cache_bytes)
    folders = [model.version_directory, model.directory]
    if model.common_file is not None:
        folders.append(model.common_file.parent)
    for folder in folders:
        if (folder / "venv" / "pyvenv.cfg").is_file():
            return Environment(_interpreter(folder / "venv"))
    for folder in folders:
        if (folder / "requirements.txt").is_file():
            inside = model.directory if folder.is_relative_to(model.directory) else folder
            return _required(model, folder / "requirements.txt", inside, cache)
    return Environment()


def _declared(model: Model, declared: str, cache: NodeCache, cache_bytes: int) -> Environment:
    path = Path(declared.replace(_DIRECTORY, str(model.directory.absolute())))
    if not path.is_absolute() or "\0" in declared or not path.exists():
        raise internal(f"Failed to get the canonical path for {path}.")
    inside = path.resolve().is_relative_to(model.directory.resolve())
    if _DIRECTORY in declared and not inside:
        raise invalid_arg(f"{_PATH} '{declared}' escapes the directory of model '{model.name}'")
    if path.is_dir():
        return Environment(_interpreter(path))
    with path.open("rb") as archive:
        key = file_digest(archive, blake2b).hexdigest()[:32]
    size = 4 * path.stat().st_size  # what such archives grow to, roughly
    lease = cache.lease(key) or cache.fill(key, size, lambda root: unpack(path, root, cache_bytes))
    return _leased(lease)


def _required(model: Model, requirements: Path, inside: Path, cache: NodeCache) -> Environment:
    choice = model.backend_config.get("requirements", "ignore")
    if choice not in ("install", "ignore"):
        raise invalid_arg(f"{_SETTING} must be 'install' or 'ignore', got '{choice}'")
    if choice == "ignore":
        return Environment(unused=requirements)
    content = f"{sys.version} {sys.platform}\n".encode() + contents(requirements, inside)
    key = blake2b(content, digest_size=16).hexdigest()

    def write(root: Path) -> None:
        _install(model.name, requirements, root)
        _relocate(root, root.parent / key)

    return _leased(cache.lease(key) or cache.fill(key, 0, write))


def _leased(lease: Lease) -> Environment:
    try:
        return Environment(_interpreter(lease.directory), lease)
    except InferError:
        lease.release()
        raise


def _interpreter(root: Path) -> Path:
    for name in ("python3", "python"):
        python = root.absolute() / "bin" / name
        if os.access(python, os.X_OK):
            return python
    raise internal(
        f"Path {root}/bin/python does not exist, or is no program. The Python environment should contain its"
        " interpreter; copies from object storage lose links and permissions, archives keep them."
    )


def unpack(archive: Path, root: Path, max_bytes: int) -> None:
    """Unpack an archive of an environment.

    Nothing is written outside `root`, nor through a link, and no link of the archive leads out of it.

    Raises:
        InferError: INVALID_ARG for an archive that would, or that is none; UNAVAILABLE for more than
            `max_bytes`.
    """
    links: set[str] = set()
    total = 0
    try:
        with tarfile.open(archive) as members:
            for member in members:
                _check_member(member, links)
                total += member.size
                if total > max_bytes:
                    raise unavailable(f"archive '{archive}' holds more than {max_bytes} bytes")
                member.mode &= 0o755  # as tarfile's own filter has it, which Python 3.11 before .4 lacks
                members.extract(member, root)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise invalid_arg(f"unable to unpack '{archive}': {error}") from error


def _check_member(member: tarfile.TarInfo, links: set[str]) -> None:
    name = posixpath.normpath(member.name)
    linked = member.linkname
    if member.issym():
        linked = posixpath.join(posixpath.dirname(name), member.linkname)
    linked = posixpath.normpath(linked)
    harmless = _inside(name) and not _passes(name, links)
    if member.issym():
        harmless &= _inside(linked)
    elif member.islnk():
        harmless &= _inside(linked) and not _passes(linked, links)
    else:
        harmless &= member.isreg() or member.isdir()
    if not harmless:
        raise invalid_arg(
            f"archive member '{member.name}' is refused: it leads out of the environment, or is no file"
        )
    if member.issym():
        links.add(name)


def _inside(path: str) -> bool:
    return not path.startswith("/") and path.split("/")[0] != ".."


def _passes(path: str, links: set[str]) -> bool:
    """Whether the path, or a folder on its way, is one of the links."""
    parts = path.split("/")
    return any("/".join(parts[:end]) in links for end in range(1, len(parts) + 1))


def _install(name: str, requirements: Path, root: Path) -> None:
    python = root / "bin" / "python"
    _run(name, requirements, [sys.executable, "-m", "venv", str(root)], python)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    _run(name, requirements, [*pip, "-r", requirements.name, "numpy"], python)


def _run(name: str, requirements: Path, command: list[str], python: Path) -> None:
    from backends.python.worker.activation import environment_variables  # few models need it

    try:
        done = subprocess.run(
            command,
            cwd=requirements.parent,
            env=environment_variables(python, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_INSTALL_S,
        )
    except subprocess.TimeoutExpired as error:
        raise internal(f"installing '{requirements}' of model '{name}' took over {_INSTALL_S:g} s") from error
    if done.returncode:
        said = done.stdout.decode(errors="replace")[-_SAID:].strip()
        raise internal(f"installing '{requirements}' of model '{name}' failed: {said}")


def _relocate(root: Path, final: Path) -> None:
    """Have the programs of the environment name the interpreter where it will be."""
    for program in (root / "bin").iterdir():
        if program.is_file() and not program.is_symlink():
            program.write_bytes(program.read_bytes().replace(os.fsencode(root), os.fsencode(final)))
