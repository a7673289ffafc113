"""Fetches a model's files to this node; a lease keeps them there while the model is loaded."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from app.core.errors import unavailable
from app.core.files.private_files import private_root
from deployments.model_store.cache import Lease, NodeCache
from deployments.model_store.fingerprint import version_digest
from deployments.spec import MANAGER, ModelSpec

if TYPE_CHECKING:
    from deployments.model_store.storage import RemoteFile


class LocalCopy(msgspec.Struct, frozen=True):
    """A spec whose `directory` is on this node; call `release` when the model is unloaded.

    Attributes:
        spec: the spec with the local directory.
        lease: keeps a cached copy.
        remove: removes the copy of a load request's files.
    """

    spec: ModelSpec
    lease: Lease | None = None
    remove: Callable[[], object] | None = None

    def release(self) -> None:
        """Release the copy; files of a load request are removed at once, unless another replica uses them."""
        if self.lease is not None:
            self.lease.release()
        if self.remove is not None:
            self.remove()


def materialize_model(spec: ModelSpec) -> LocalCopy:
    """Find or fetch the files of a model version. Blocks.

    Raises:
        InferError: the files cannot be fetched, or there is no space for them.
    """
    if spec.bundle:
        return _fetch_overrides(spec)
    return _download(spec) if spec.origin else LocalCopy(spec)


def _download(spec: ModelSpec) -> LocalCopy:
    """Download a version once per node; the copy stays until its space is needed."""
    cache = NodeCache(Path(spec.cache_directory), spec.server.cache_bytes)
    key = blake2b(f"{spec.origin} {spec.version} {spec.fingerprint}".encode(), digest_size=16).hexdigest()
    lease = cache.lease(key)
    if lease is None:
        from deployments.model_store.storage import Storage  # most models are local

        storage = Storage(spec.origin)
        files = _version_files(spec, storage.listing().files)
        size = sum(file.size for file in files)

        def write(root: Path) -> None:
            (root / spec.name / str(spec.version)).mkdir(mode=0o700, parents=True)
            storage.download(files, root / spec.name)

        lease = cache.fill(key, size, write)
    return LocalCopy(msgspec.structs.replace(spec, directory=str(lease.directory / spec.name)), lease)


def _version_files(spec: ModelSpec, files: "tuple[RemoteFile, ...]") -> "list[RemoteFile]":
    """Return the files of one version and the shared ones.

    Raises:
        InferError: UNAVAILABLE when they are not those that the manager saw.
    """
    versions = {file.version for file in files if file.version is not None}
    stamps = [(file.path, file.stamp, 0) for file in files]
    if version_digest(stamps, spec.version, versions) != spec.fingerprint:
        raise unavailable(f"model '{spec.name}' changed in {spec.origin} while it was being loaded")
    return [file for file in files if file.version in (None, spec.version)]


def _fetch_overrides(spec: ModelSpec) -> LocalCopy:
    """Lease the files of a load request, fetched from the manager when it is on another node."""
    cache = NodeCache(private_root() / "overrides", spec.server.cache_bytes)
    lease = cache.lease(spec.bundle)
    if lease is None:
        with ThreadPoolExecutor(1) as thread:  # `result` of a handle must not be called on Serve's own loop
            lease = thread.submit(_fetch, cache, spec).result()
    local = msgspec.structs.replace(spec, directory=str(lease.directory / spec.name))
    return LocalCopy(local, lease, lambda: cache.remove(spec.bundle))


def _fetch(cache: NodeCache, spec: ModelSpec) -> Lease:
    from app.ray_adapter.serve.handles import (
        open_handle,  # where the manager is in this process, there is no Ray
    )

    manager: Any = open_handle(MANAGER, spec.manager)
    try:
        listing: list[tuple[str, int]] = manager.override_listing.remote(spec.bundle).result()

        def write(root: Path) -> None:
            for path, size in listing:
                target = root / path
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(target, "wb") as file:
                    while file.tell() < size:
                        file.write(manager.override_chunk.remote(spec.bundle, path, file.tell()).result())

        return cache.fill(spec.bundle, sum(size for _, size in listing), write)
    finally:
        manager.shutdown()
