"""Reads the file of tokens again when it changes."""

import asyncio
import logging
import os
from typing import Final

from app.access.grants import Grants
from app.access.token_file import read_tokens
from app.access.tokens import Token

logger = logging.getLogger(__name__)

_POLL_S: Final = 1.0

Signature = tuple[int, ...]


class TokenWatch:
    """A file of tokens and what it had last.

    Args:
        path: of the file.

    Raises:
        OSError, ValueError: see `read_tokens`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._signature = _signature(path)
        self.grants = Grants(read_tokens(path))

    async def follow(self) -> None:
        """Put the tokens into force that the file has, for ever."""
        while True:
            await asyncio.sleep(_POLL_S)
            # Off the loop: a file may be on a disk of the network.
            tokens = await asyncio.to_thread(self.changed)
            if tokens is not None:
                self.grants.replace(tokens)
                logger.info("%d tokens of '%s' are in force", len(tokens), self._path)

    def changed(self) -> tuple[Token, ...] | None:
        """Return the tokens if the file has changed; a file that cannot be used is logged once."""
        signature = _signature(self._path)
        if signature == self._signature:
            return None
        self._signature = signature
        try:
            return read_tokens(self._path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            logger.error("the tokens of '%s' stay as they were: %s", self._path, reason)
            return None


def _signature(path: str) -> Signature:
    """Return what differs once a file is written, replaced or given other permissions; () without a file."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns, found.st_ctime_ns
