"""What is compiled from the C files of this folder (setup.py)."""

from typing_extensions import Buffer

SOURCES: str
"""Digest of the files that it was compiled from."""

class Mapping:
    """A mapped file, which its owner may shorten or remove at any time. It is unmapped when it is dropped."""

    def __init__(self, descriptor: int) -> None:
        """Map all of the file; it stays open while this object lives.

        Raises:
            OSError: it is empty, or cannot be mapped.
        """

    def read(self, into: Buffer, offset: int, /) -> bool:
        """Fill a buffer from an offset; return whether the file has a name and all of these bytes.

        It has to have had them when it was mapped.
        """

    def write(self, data: Buffer, offset: int, /) -> bool:
        """Write a buffer to an offset; return as `read`. The file does not become longer."""

    @property
    def linked(self) -> bool:
        """Whether the file has a name."""
