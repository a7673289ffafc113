"""Prepares the Python environment of a Python model on this node.

The first of these that exists:
- the archive (of conda-pack) or directory that EXECUTION_ENV_PATH of the model's configuration names,
- a directory `venv` beside model.py or in the model's directory,
- a `requirements.txt` there, if the server is configured to install packages.

The last two may also be beside the model.py of a Python-based backend, for all its models without their own.
A backend of ours has the environment that `--backend-config=<backend>,environment` chooses.
Archives are unpacked and packages installed once per node for the same content.
"""

import os
import posixpath
import tarfile
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, Final

import msgspec

from app.core.errors import InferError, internal, invalid_arg, unavailable, unsupported
from app.core.files.paths import path_inside
from app.core.files.private_files import private_root
from backends.base import Model
from backends.registry.descriptions import described
from backends.registry.loading import ENVIRONMENT, SERVER
from deployments.environments.differences import SETTING, unlike
from deployments.environments.install import environment_key, install
from deployments.environments.packaged import PackagedEnvironments
from deployments.environments.progress import working
from deployments.model_store.cache import Lease, NodeCache

_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_PATH: Final = "EXECUTION_ENV_PATH"


class Environment(msgspec.Struct):
    """The environment that executes a model.

    Attributes:
        python: its interpreter; None for the server's own.
        lease: keeps a copy on this node.
        unused: a requirements.txt whose packages were not installed.
        unlike: how the server's packages differ from what that asks for.
    """

    python: Path | None = None
    lease: Lease | None = None
    unused: Path | None = None
    unlike: str = ""

    def release(self) -> None:
        """Allow the eviction of the copy on this node."""
        if self.lease is not None:
            self.lease.release()

    def explain(self, error: InferError) -> InferError:
        """Return the error of a load, with a hint if packages are missing that were not installed."""
        if self.unused is None or "ModuleNotFoundError" not in error.message:
            return error
        text = (
            f"{error.message}\n'{self.unused}' is not installed by default; {SETTING}=install gives each"
            " such model an environment of its own"
        )
        return InferError(error.code, text, error.reason)


def prepare(model: Model, cache_bytes: int) -> Environment:
    """Find, unpack or install the environment of a model. Blocks.

    Args:
        model: of any backend; only models that Python code executes have environments.
        cache_bytes: the size limit of all environments on this node.

    Raises:
        InferError: INVALID_ARG for a path that leads out of its directory or an archive that does,
            INTERNAL for an environment that is missing or cannot be installed, UNAVAILABLE without space.
    """
    return _environment(model, NodeCache(private_root() / "environments", cache_bytes), cache_bytes)


def look(model: Model) -> Environment:
    """Find the environment of a model as `prepare` does, but unpack and install nothing.

    Raises:
        InferError: there is none, or it cannot be used.
    """
    return _environment(model, None, 0)


def _environment(model: Model, cache: NodeCache | None, cache_bytes: int) -> Environment:
    """Find an environment; without a cache, one that would have to be made is empty."""
    if model.config.backend != "python" and model.common_file is None:
        return Environment()
    declared = model.parameter(_PATH)
    if declared:
        return _declared(model, declared, cache, cache_bytes)
    folders = [model.version_directory, model.directory]
    if model.common_file is not None and not _is_ours(model):
        folders.append(model.common_file.parent)
    for folder in folders:
        if (folder / "venv" / "pyvenv.cfg").is_file():
            return Environment(_interpreter(folder / "venv"))
    for folder in folders:
        if (folder / "requirements.txt").is_file():
            inside = model.directory if folder.is_relative_to(model.directory) else folder
            return _required(model, folder / "requirements.txt", inside, cache)
    return chosen(model, cache is not None) if _is_ours(model) else Environment()


def _declared(model: Model, declared: str, cache: NodeCache | None, cache_bytes: int) -> Environment:
    path = Path(declared.replace(_DIRECTORY, str(model.directory.absolute())))
    if not path.is_absolute() or "\0" in declared or not path.exists():
        raise internal(f"Failed to get the canonical path for {path}.")
    if _DIRECTORY in declared and path_inside(model.directory.absolute(), str(path)) is None:
        raise invalid_arg(f"{_PATH} '{declared}' escapes the directory of model '{model.name}'")
    if path.is_dir():
        return Environment(_interpreter(path))
    if cache is None:
        return Environment()
    with path.open("rb") as archive:
        key = file_digest(archive, blake2b).hexdigest()[:32]
    size = 4 * path.stat().st_size  # the approximate size of the unpacked archive

    def write(root: Path) -> None:
        with working(f"unpacking {path.name} of model '{model.name}'"):
            unpack(path, root, cache_bytes)

    return _leased(cache.lease(key) or cache.fill(key, size, write))


def _required(model: Model, requirements: Path, inside: Path, cache: NodeCache | None) -> Environment:
    choice = model.backend_config.get("requirements", "ignore")
    if choice not in ("install", "ignore"):
        raise invalid_arg(f"{SETTING} must be 'install' or 'ignore', got '{choice}'")
    if choice == "ignore":
        return Environment(unused=requirements, unlike=unlike(model.name, requirements, inside))
    key = environment_key(requirements, inside)
    if cache is None:
        return Environment()

    def write(root: Path) -> None:
        with working(f"installing {requirements.name} of model '{model.name}'"):
            install(f"model '{model.name}'", requirements, root, root.parent / key)

    return _leased(cache.lease(key) or cache.fill(key, 0, write))


def _is_ours(model: Model) -> bool:
    """Whether a Python-based backend is one of ours."""
    name, file = model.config.backend, model.common_file
    return file is not None and file == described(name).common_file(model.config.runtime)


def chosen(model: Model, installs: bool = True) -> Environment:
    """Return the environment of a backend of ours, as `--backend-config=<backend>,environment` chooses it.

    `server` is the replica's own, the default of built-in backends; `own` has the packages of the backend's
    requirements.txt, the default of packaged ones; a path is that of an environment, or of its interpreter.

    Args:
        model: the model.
        installs: whether one that the server would install at a load is installed.

    Raises:
        InferError: INVALID_ARG for another value; UNSUPPORTED with the command that installs the environment;
            INTERNAL for a path without interpreter.
    """
    name = model.config.backend
    choice = model.backend_config.get(ENVIRONMENT, "own" if described(name).packaged else SERVER)
    if choice == SERVER:
        return Environment()
    if choice == "own":
        wanted = model.backend_config.get("requirements") == "install"
        return Environment() if wanted and not installs else _own(name, wanted)
    if not os.path.isabs(choice):
        raise invalid_arg(
            f"--backend-config={name},{ENVIRONMENT} must be 'server', 'own' or the absolute path of an"
            f" environment or its interpreter, got '{choice}'"
        )
    path = Path(choice)
    return Environment(path if path.is_file() and os.access(path, os.X_OK) else _interpreter(path))


def _own(name: str, installs: bool) -> Environment:
    environments = PackagedEnvironments()
    lease = environments.lease(name)
    if lease is None and installs:
        lease = environments.install(name)
    if lease is None:
        raise unsupported(
            f"backend '{name}' needs an environment of its own, which is not installed: 'nereid backends"
            f" install {name}' installs it, as does --backend-config={name},requirements=install at a load"
        )
    return _leased(lease)


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

    Nothing is written outside of `root` or through a link, and no link of the archive leads out of it.

    Raises:
        InferError: INVALID_ARG for a member that would, or a broken archive; UNAVAILABLE above `max_bytes`.
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
                member.mode &= 0o755  # as tarfile's data filter, which Python 3.11 has only from 3.11.4 on
                members.extract(member, root, **_AS_CHECKED)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise invalid_arg(f"unable to unpack '{archive}': {error}") from error


_AS_CHECKED: Final[dict[str, Any]] = (
    {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
)
"""`_check_member` is stricter than the filters of tarfile, of which Python 3.12 wants one."""


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
    """Return whether the path or one of its parents is a link."""
    parts = path.split("/")
    return any("/".join(parts[:end]) in links for end in range(1, len(parts) + 1))
