"""The environments of backends of ours that run in one of their own, in a directory of this user."""

import os
from pathlib import Path
from typing import Final

from backends.registry.descriptions import described
from deployments.environments.install import environment_key, install
from deployments.model_store.cache import Lease, NodeCache

_UNLIMITED: Final = 1 << 62


def data_directory() -> Path:
    """Return where they are kept, by the XDG Base Directory Specification."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "nereid/backends"


class PackagedEnvironments:
    """The environments on this node: a directory `<backend>-<hash of its requirements>` for each."""

    def __init__(self) -> None:
        self.root = data_directory()
        self._cache = NodeCache(self.root, _UNLIMITED)

    def lease(self, name: str) -> Lease | None:
        """Return a lease of a backend's environment; None when it is not installed."""
        return self._cache.lease(_key(name))

    def install(self, name: str, shown: bool = False) -> Lease:
        """Install a backend's environment, unless it is there, and return a lease of it.

        Args:
            name: the backend.
            shown: whether pip writes to this process's output.

        Raises:
            InferError: INTERNAL with pip's output when it fails.
        """
        key, requirements = _key(name), described(name).requirements

        def write(root: Path) -> None:
            install(f"backend '{name}'", requirements, root, root.parent / key, shown)

        return self._cache.fill(key, 0, write)

    def installed(self) -> dict[str, Path]:
        """Return the directories of all environments by key, those of other requirements included."""
        return {key: self.root / key for key in sorted(self._cache.listing())}

    def remove(self, name: str) -> list[str]:
        """Remove all environments of a backend; return the keys of those that are in use and stay."""
        keys = [key for key in self._cache.listing() if key.rpartition("-")[0] == name]
        return [key for key in keys if not self._cache.remove(key)]


def is_current(key: str) -> bool:
    """Whether the backends of this version use an environment."""
    name = key.rpartition("-")[0]
    return described(name).requirements.is_file() and key == _key(name)


def _key(name: str) -> str:
    requirements = described(name).requirements
    return f"{name}-{environment_key(requirements, requirements.parent)}"
