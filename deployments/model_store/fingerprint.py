"""Fingerprints of a model's files: digests of names, sizes and modification times, not of contents."""

import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from deployments.model_store.layout import CONFIG_FILE, CONFIGS_DIRECTORY, ROLLOUT_FILE, ModelEntry


def fingerprint(entry: ModelEntry) -> str:
    """Return a digest of every file of the model; it changes when a file is added, removed or written."""
    return _digest(_files(entry))


def version_fingerprint(entry: ModelEntry, version: int) -> str:
    """Return a digest of one version: its directory and the shared files, without the configuration.

    If it is unchanged and `change_requires_reload` returns False, the loaded version may stay.
    """
    return version_digest(_files(entry), version, entry.versions)


def version_bytes(entry: ModelEntry, version: int) -> int:
    """Return the size of the files that a version has or shares with others."""
    others = {str(other) for other in entry.versions if other != version}
    return sum(size for path, _, size in _files(entry) if path.split("/", 1)[0] not in others)


def version_digest(files: Iterable[tuple[str, int, int]], version: int, versions: Iterable[int]) -> str:
    """Return `version_fingerprint` for relative path, modification time (ns) and size of a model's files."""
    others = {str(other) for other in versions if other != version}
    return _digest(
        item for item in files if not is_config(item[0]) and item[0].split("/", 1)[0] not in others
    )


def is_config(path: str) -> bool:
    """Return whether a path, relative to the model's directory, is that of a configuration or a policy."""
    return path in (CONFIG_FILE, ROLLOUT_FILE) or path.startswith(CONFIGS_DIRECTORY + "/")


def _digest(files: Iterator[tuple[str, int, int]]) -> str:
    digest = blake2b(digest_size=16)
    for path, modified_ns, size in sorted(files):
        digest.update(f"{path}\0{modified_ns}\0{size}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(entry: ModelEntry) -> Iterator[tuple[str, int, int]]:
    """Yield relative path, modification time (ns) and size; files that vanish meanwhile are left out."""
    root = entry.directory.resolve()
    # A version directory may be a link within the repository; other links could form a loop.
    linked = [str(version) for version in entry.versions if (root / str(version)).is_symlink()]
    tops = [("", root), *((f"{version}/", (root / version).resolve()) for version in linked)]
    for prefix, top in tops:
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    status = os.stat(path)
                except OSError:
                    continue
                yield prefix + os.path.relpath(path, top), status.st_mtime_ns, status.st_size
