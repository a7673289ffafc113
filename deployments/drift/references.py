"""Finds the references of models in their directories, and reads them again when they change."""

import logging
import os
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from app.core.drift.reference import MOST_BYTES, REFERENCE_FILE, Reference, decode_reference
from app.core.errors import InferError

logger = logging.getLogger(__name__)


class Known(NamedTuple):
    """The reference of a model, and the digest of its text."""

    digest: str
    reference: Reference


class References:
    """The references of models, by identifier; every method blocks on the disk.

    Args:
        directory: returns where a model is; None if it is nowhere.
    """

    def __init__(self, directory: Callable[[str], Path | None]) -> None:
        self._directory = directory
        self._read: dict[str, tuple[tuple[str, int, int], Known | None]] = {}

    def find(self, names: Iterable[str]) -> dict[str, Known]:
        """Return the references of those of these models that have one; a bad one is logged, once."""
        before, self._read = self._read, {}
        for name in names:
            path = self._path(name)
            stamp = None if path is None else _stamp(path)
            if path is None or stamp is None:
                continue
            old = before.get(name)
            self._read[name] = old if old is not None and old[0] == stamp else (stamp, _known(path, name))
        return {name: known for name, (_, known) in self._read.items() if known is not None}

    def _path(self, name: str) -> Path | None:
        directory = self._directory(name)
        return None if directory is None else directory / REFERENCE_FILE


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return str(path), status.st_mtime_ns, status.st_size


def _known(path: Path, name: str) -> Known | None:
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            logger.error("model '%s': %s is larger than %d bytes", name, path, MOST_BYTES)
            return None
        return Known(blake2b(text, digest_size=16).hexdigest(), decode_reference(text, str(path)))
    except OSError as error:
        logger.error("model '%s': %s: %s", name, path, error.strerror)
    except InferError as error:
        logger.error("model '%s' is not watched: %s", name, error.message)
    return None
