"""Fingerprints of a model's files: digests of names, sizes and modification times, not of contents."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from stat import S_ISDIR
from typing import Final

from deployments.model_store.layout import CONFIG_FILE, CONFIGS_DIRECTORY, POLICY_FILES, ModelEntry

MOST_READ: Final = 64 << 30
"""Bytes of a version whose content is read: a minute or two for this."""
_BLOCK: Final = 1 << 20
_Identity = tuple[int, int]
"""Device and inode of a directory."""


def fingerprint(entry: ModelEntry) -> str:
    """Return a digest of every file of the model; it changes when a file is added, removed or written."""
    return _digest(files_of(entry.directory))


def version_fingerprint(entry: ModelEntry, version: int) -> str:
    """Return a digest of one version: its directory and the shared files, without the configuration.

    If it is unchanged and `change_requires_reload` returns False, the loaded version may stay.
    """
    return version_digest(files_of(entry.directory), version, entry.versions)


def version_content(entry: ModelEntry, version: int) -> str:
    """Return a digest of what the files of a version say, and those that it shares, configurations included.

    Copies have the same, whatever their times are. "" for more than `MOST_READ` bytes, or files that vanish.
    """
    others = {str(other) for other in entry.versions if other != version}
    files = [each for each in files_of(entry.directory) if each[0].split("/", 1)[0] not in others]
    if sum(size for *_, size in files) > MOST_READ:
        return ""
    digest = blake2b(digest_size=16)
    try:
        for path, _, size in sorted(each for each in files if each[0] not in POLICY_FILES):
            digest.update(f"{path}\0{size}\n".encode("utf-8", "surrogateescape"))
            with open(entry.directory / path, "rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def version_bytes(entry: ModelEntry, version: int) -> int:
    """Return the size of the files that a version has or shares with others."""
    others = {str(other) for other in entry.versions if other != version}
    return sum(size for path, _, size in files_of(entry.directory) if path.split("/", 1)[0] not in others)


def version_digest(files: Iterable[tuple[str, int, int]], version: int, versions: Iterable[int]) -> str:
    """Return `version_fingerprint` for relative path, modification time (ns) and size of a model's files."""
    others = {str(other) for other in versions if other != version}
    return _digest(
        item for item in files if not is_config(item[0]) and item[0].split("/", 1)[0] not in others
    )


def is_config(path: str) -> bool:
    """Return whether a path, relative to the model's directory, is that of a configuration or a policy."""
    return path in (CONFIG_FILE, *POLICY_FILES) or path.startswith(CONFIGS_DIRECTORY + "/")


def _digest(files: Iterator[tuple[str, int, int]]) -> str:
    digest = blake2b(digest_size=16)
    for path, modified_ns, size in sorted(files):
        digest.update(f"{path}\0{modified_ns}\0{size}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def files_of(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Yield relative path, modification time (ns) and size; files that vanish meanwhile are left out.

    Linked directories are followed, such as those of a Hugging Face cache, but none that has the link itself.
    """
    return _below(str(directory), "", frozenset(_parents(directory)))


def _below(folder: str, prefix: str, around: frozenset[_Identity]) -> Iterator[tuple[str, int, int]]:
    for entry in _entries(folder):
        try:
            status = os.stat(entry.path)
        except OSError:
            continue
        if not S_ISDIR(status.st_mode):
            yield prefix + entry.name, status.st_mtime_ns, status.st_size
        elif (identity := (status.st_dev, status.st_ino)) not in around:
            yield from _below(entry.path, f"{prefix}{entry.name}/", around | {identity})


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _parents(directory: Path) -> Iterator[_Identity]:
    """Yield the identities of a directory and of those above it, as far as they can be seen."""
    above = str(directory)
    last = (-1, -1)
    with suppress(OSError):
        while (status := os.stat(above)) and (identity := (status.st_dev, status.st_ino)) != last:
            yield identity
            last, above = identity, f"{above}/.."
