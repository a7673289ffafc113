"""Stores the files of load requests on the manager's node while models are served from them.

`<root>/<digest>/<model>/<version>/<file>`: the digest covers names and contents, so that a repeated request
changes nothing. A replica on another node fetches the files from the manager.
"""

import os
import posixpath
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from app.core.errors import InferError, invalid_arg, not_found, unavailable
from deployments.model_store.cache import Lease, NodeCache
from deployments.model_store.layout import check_model_name

CHUNK_BYTES: Final = 16 << 20
"""Bytes of a file that the manager sends at a time."""

NAME_BYTES: Final = 255
"""Bytes of one component of a path on Linux file systems (NAME_MAX)."""


_LIBRARY: Final = re.compile(r"libtriton_.*\.so|batchstrategy\.so")
"""What is loaded by name into the process of a model."""


class Bundle(NamedTuple):
    """The files of one request; `directory` is a repository of this one model."""

    digest: str
    directory: Path


def checked_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files by normalised path below the model's directory.

    Raises:
        InferError: INVALID_ARG for a path that is not one of a file inside the directory (Triton's texts).
    """
    checked: dict[str, bytes] = {}
    for name, content in files.items():
        path = posixpath.normpath(name.lstrip("/"))  # "/1/f" is in the directory, as in Triton
        if path in (".", "..") or path.startswith("../") or "\\" in path or "\0" in path:
            shown = name[:255].encode("unicode_escape").decode("ascii")
            raise invalid_arg(
                f"Invalid file parameter 'file:{shown}' with normalized path '{posixpath.normpath(shown)}' "
                "must stay within model directory."
            )
        if any(len(part.encode("utf-8", "surrogatepass")) > NAME_BYTES for part in path.split("/")):
            raise invalid_arg(f"Invalid file path: a component of 'file:{name[:32]}...' is too long")
        if _LIBRARY.fullmatch(posixpath.basename(path)):
            raise invalid_arg(
                f"Invalid file parameter 'file:{path}': a library of native code is loaded from the model "
                "repository only, not from a request"
            )
        checked[path] = content
    for path in checked:
        if any(folder in checked for folder in _folders(path)):
            raise invalid_arg(f"Invalid file parameter 'file:{path}', directory has been created as a file")
    return checked


def _folders(path: str) -> Iterator[str]:
    while path := posixpath.dirname(path):
        yield path


class Overrides:
    """The stored files, bounded in bytes; removed when no model is served from them. Methods block."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._cache = NodeCache(root, max_bytes)
        self._root = root
        self._max_bytes = max_bytes
        self._leases: dict[str, Lease] = {}
        self._loading: Counter[str] = Counter()
        self._lock = threading.Lock()

    def open(self, model: str, files: Mapping[str, bytes]) -> Bundle:
        """Write the files of a request; they are kept until `close`, and then as long as `retain` lists them.

        Raises:
            InferError: INVALID_ARG for a bad name or path, UNAVAILABLE when there is no space for the files.
        """
        check_model_name(model)
        checked = checked_files(files)
        digest = _digest(model, checked)
        with self._lock:
            if digest not in self._leases:
                self._leases[digest] = self._write(digest, model, checked)
            self._loading[digest] += 1
        return Bundle(digest, self._root / digest)

    def close(self, bundle: Bundle) -> None:
        """End the load of a bundle."""
        with self._lock:
            self._loading[bundle.digest] -= 1

    def adopt(self, digest: str) -> None:
        """Keep the files of a model that was served before this manager started, if this node has them."""
        with self._lock:
            lease = self._cache.lease(digest) if digest not in self._leases else None
            if lease is not None:
                self._leases[digest] = lease

    def retain(self, served: Iterable[str]) -> None:
        """Remove files that no model is served or loaded from; files leased by a replica are kept for now."""
        with self._lock:
            self._loading = +self._loading
            kept = {*served, *self._loading}
            for digest in [digest for digest in self._leases if digest not in kept]:
                self._leases.pop(digest).release()
            for digest in self._cache.listing():
                if digest not in kept:
                    self._cache.remove(digest)

    def listing(self, digest: str) -> list[tuple[str, int]]:
        """Return relative paths and sizes of a bundle's files.

        Raises:
            InferError: NOT_FOUND when it is not here.
        """
        directory = self._directory(digest)
        found = [Path(folder, name) for folder, _, names in os.walk(directory) for name in names]
        return [(str(path.relative_to(directory)), path.stat().st_size) for path in sorted(found)]

    def read(self, digest: str, path: str, offset: int) -> bytes:
        """Return at most `CHUNK_BYTES` bytes of a file of `listing`."""
        with open(self._directory(digest) / path, "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)

    def _directory(self, digest: str) -> Path:
        if digest not in self._leases:
            raise not_found("the files this model was loaded from are gone; load it again")
        return self._root / digest

    def _write(self, digest: str, model: str, files: Mapping[str, bytes]) -> Lease:
        size = sum(map(len, files.values()))
        try:
            return self._cache.fill(digest, size, lambda root: _write(root / model, files))
        except InferError as error:
            limit = f"at most {self._max_bytes} bytes of them are kept (model_override_bytes)"
            raise unavailable(f"failed to keep the files of model '{model}': {limit}") from error
        except OSError as error:
            raise invalid_arg(f"failed to write the files of model '{model}': {error.strerror}") from None


def _digest(model: str, files: Mapping[str, bytes]) -> str:
    digest = blake2b(model.encode(), digest_size=16)
    for path, content in sorted(files.items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    directory.mkdir(mode=0o700)
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.write_bytes(content)
