"""From the spec of a model version to its files on this node; the lease keeps them there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from app.core.errors import unavailable
from app.ray_adapter.handles import new_handle
from deployments.model_store.cache import Lease, NodeCache, private_root
from deployments.model_store.fingerprint import version_digest
from deployments.spec import MANAGER, ModelSpec

if TYPE_CHECKING:
    from deployments.model_store.storage import RemoteFile


class LocalCopy(msgspec.Struct, frozen=True):
    """A spec whose `directory` is on this node. `release` when the model is unloaded."""

    spec: ModelSpec
    lease: Lease | None = None
    forget: Callable[[], object] | None = None

    def release(self) -> None:
        """Let the copy go; files of a load request go at once, unless another replica uses them."""
        if self.lease is not None:
            self.lease.release()
        if self.forget is not None:
            self.forget()


def materialize_model(spec: ModelSpec) -> LocalCopy:
    """Find or fetch the files of a model version. Blocks.

    Raises:
        InferError: they cannot be fetched, or there is no room for them.
    """
    if spec.bundle:
        return _from_request(spec)
    return _from_cloud(spec) if spec.origin else LocalCopy(spec)


def _from_cloud(spec: ModelSpec) -> LocalCopy:
    """A version is downloaded once a node, and stays until the room is needed for others."""
    cache = NodeCache(Path(spec.cache_directory), spec.cache_bytes)
    key = blake2b(f"{spec.origin} {spec.version} {spec.fingerprint}".encode(), digest_size=16).hexdigest()
    lease = cache.lease(key)
    if lease is None:
        from deployments.model_store.storage import Storage  # most models are on a disk

        storage = Storage(spec.origin)
        files = _version_files(spec, storage.listing().files)
        size = sum(file.size for file in files)

        def write(root: Path) -> None:
            (root / spec.name / str(spec.version)).mkdir(mode=0o700, parents=True)
            storage.download(files, root / spec.name)

        lease = cache.fill(key, size, write)
    return LocalCopy(msgspec.structs.replace(spec, directory=str(lease.directory / spec.name)), lease)


def _version_files(spec: ModelSpec, files: "tuple[RemoteFile, ...]") -> "list[RemoteFile]":
    """The files of one version and those all share; they must be what the manager saw."""
    versions = {file.version for file in files if file.version is not None}
    stamps = [(file.path, file.stamp, 0) for file in files]
    if version_digest(stamps, spec.version, versions) != spec.fingerprint:
        raise unavailable(f"model '{spec.name}' changed in {spec.origin} while it was being loaded")
    return [file for file in files if file.version in (None, spec.version)]


def _from_request(spec: ModelSpec) -> LocalCopy:
    """The manager wrote them; on another node they are fetched from it."""
    cache = NodeCache(private_root() / "overrides", spec.cache_bytes)
    lease = cache.lease(spec.bundle)
    if lease is None:
        with ThreadPoolExecutor(1) as thread:  # a handle's answer may not be awaited on Serve's own loop
            lease = thread.submit(_fetch, cache, spec).result()
    local = msgspec.structs.replace(spec, directory=str(lease.directory / spec.name))
    return LocalCopy(local, lease, lambda: cache.remove(spec.bundle))


def _fetch(cache: NodeCache, spec: ModelSpec) -> Lease:
    manager: Any = new_handle(MANAGER, spec.manager)
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
