"""Mirrors a remote repository as a local directory: configurations in full, other files as empty stand-ins.

The modification time of a stand-in is the stamp of the remote file, so that layout, fingerprints and polling
work on a remote repository as on a local one. Model files are not downloaded.
"""

import os
import shutil
import threading
from collections.abc import Collection, Iterable
from hashlib import blake2b
from pathlib import Path

from app.core.config.text import MAX_CONFIG_BYTES
from app.core.files.private_files import private_directory, private_root
from app.core.whole_files import write_whole
from app.settings.repositories import remote_scheme
from deployments.model_store.fingerprint import is_config
from deployments.model_store.layout import check_model_name
from deployments.model_store.storage import Listing, RemoteFile, Storage


class Mirror:
    """The local mirror of one remote repository. Every method blocks."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self.directory = root / blake2b(url.encode(), digest_size=8).hexdigest()
        self._storage: Storage | None = None
        self._lock = threading.Lock()

    def refresh(self, model: str = "") -> None:
        """Update the mirror of the repository, or of one model.

        Raises:
            InferError: INTERNAL when it cannot be read; the directory is as before.
        """
        if model:
            check_model_name(model)
        with self._lock:
            if self._storage is None:
                self._storage = Storage(self.url)
            listing = self._storage.listing(model)
            private_directory(str(self.directory))
            self._update(self._storage, self.directory / model, model, listing)

    def _update(self, storage: Storage, top: Path, model: str, listing: Listing) -> None:
        depth = 0 if model else 1
        for file in listing.files:
            below_model = file.path.split("/", depth)[depth] if file.path.count("/") >= depth else ""
            if below_model:
                self._write(storage, top / file.path, model, file, is_config(below_model))
        for path in listing.directories:
            (top / path).mkdir(mode=0o700, parents=True, exist_ok=True)
        _prune(top, {file.path for file in listing.files}, set(listing.directories))
        if model and top.is_dir() and not any(top.iterdir()):
            top.rmdir()

    def _write(self, storage: Storage, target: Path, model: str, file: RemoteFile, whole: bool) -> None:
        try:
            if os.stat(target).st_mtime_ns == file.stamp:
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        whole = whole and file.size <= MAX_CONFIG_BYTES
        content = storage.read(os.path.join(model, file.path)) if whole else b""
        if target.parent.is_file():
            target.parent.unlink()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if target.is_dir():
            shutil.rmtree(target)
        write_whole(target, content, lambda descriptor: os.utime(descriptor, ns=(file.stamp, file.stamp)))


class Mirrors:
    """The local mirrors of all remote repositories. Every method blocks.

    Attributes:
        urls: the address of each repository, by the directory of its mirror.
    """

    def __init__(self, urls: Iterable[str], root: Path) -> None:
        mirrors = [Mirror(url, root) for url in urls]
        self._mirrors = {mirror.directory: mirror for mirror in mirrors}
        self.urls = {mirror.directory: mirror.url for mirror in mirrors}

    def refresh(self, directories: Collection[Path], model: str = "") -> None:
        """Update those of these directories that are mirrors, see `Mirror.refresh`."""
        for directory, mirror in self._mirrors.items():
            if directory in directories:
                mirror.refresh(model)

    def shown(self, text: object) -> str:
        """Return a text with the addresses of repositories in the place of their mirrors."""
        shown = str(text)
        for directory, url in self.urls.items():
            shown = shown.replace(str(directory), url)
        return shown


def copies_directory(given: str, url: str) -> Path:
    """Return where nodes keep copies of a remote repository's models.

    Args:
        given: the setting; if it is empty, Triton's variable has it.
        url: of the repository.
    """
    remote = remote_scheme(url)
    parent = given or (os.environ.get(remote.mount_variable, "") if remote is not None else "")
    return Path(parent, f"nereid-{os.getuid()}") if parent else private_root() / "models"


def _prune(top: Path, files: set[str], directories: set[str]) -> None:
    """Remove files and directories that the repository no longer has."""
    kept = {*directories}
    for path in (*files, *directories):
        while path := os.path.dirname(path):
            kept.add(path)
    for folder, names, leaves in os.walk(top, topdown=False):
        for name in leaves:
            if os.path.relpath(os.path.join(folder, name), top) not in files:
                os.unlink(os.path.join(folder, name))
        for name in names:
            if os.path.relpath(os.path.join(folder, name), top) not in kept:
                os.rmdir(os.path.join(folder, name))
