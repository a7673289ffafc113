"""Header blocks of HTTP/2 (HPACK, RFC 7541). No I/O."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import hpack
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.huffman_table import HUFFMAN_TABLE
from hpack.table import HeaderTable

from app.protocol.grpc.http2 import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2Error

_CACHED_BLOCKS: Final = 64
_CACHED_BYTES: Final = 4096
"""Size of the largest cached block, with its header list."""

Head = TypeVar("Head")
Head_co = TypeVar("Head_co", covariant=True)
Pairs = list[tuple[str, str]]

STATIC_TABLE: Final = tuple((name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE)
"""The headers of the static table."""
HUFFMAN_STATES: Final = bytes(chain.from_iterable(HUFFMAN_TABLE))
"""For each state of a decoder and half a byte: the next state, flags and a symbol."""


class ReadsBlocks(Protocol[Head_co]):
    """Decodes the header blocks of one connection."""

    def read(self, block: bytes, /) -> Head_co:
        """Decode a block; raises as `HeaderReader`."""


def refuse_block(is_large: bool) -> NoReturn:
    """Refuse a header block whose list of headers is too large, or that is malformed.

    Raises:
        Http2Error: always, without what led to it.
    """
    if is_large:
        raise Http2Error(ENHANCE_YOUR_CALM, "header list is too large") from None
    raise Http2Error(COMPRESSION_ERROR, "malformed header block") from None


class HeaderReader(Generic[Head]):
    """Decodes the header blocks of one connection.

    Once names and values are in the dynamic table, a client sends the same block for the same call. A block
    is decoded once, until the table changes.

    Args:
        make: parses a header list; its result is cached with the block.
        max_size: largest header list in bytes.
    """

    __slots__ = ("_decoder", "_known", "_make")

    def __init__(self, make: Callable[[Pairs], Head], max_size: int) -> None:
        self._make = make
        self._decoder: Any = hpack.Decoder(max_size)
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Decode a block.

        Raises:
            Http2Error: COMPRESSION_ERROR; ENHANCE_YOUR_CALM for a list that is too large.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        before = self._table()
        try:
            pairs = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError:
            refuse_block(True)
        except (HPACKError, IndexError, ValueError):  # whose texts show addresses of buffers
            refuse_block(False)
        head = self._make([(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs])
        after = self._table()
        if after[0] is not before[0] or after[1] != before[1]:
            self._known.clear()
        elif len(self._known) < _CACHED_BLOCKS and _size(pairs) + len(block) <= _CACHED_BYTES:
            self._known[block] = head
        return head

    def _table(self) -> tuple[object, int]:
        """Return the newest entry and the count: together they change whenever the dynamic table does."""
        entries = self._decoder.header_table.dynamic_entries
        return (entries[0] if entries else None), len(entries)


def _size(pairs: Sequence[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in pairs)
