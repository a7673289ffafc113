"""The bytes by which a routing table travels."""

import zlib

import msgspec

from app.core.encoding import to_msgpack
from app.routing.table import RoutingTable


def encode_table(table: RoutingTable) -> bytes:
    """Return a table's bytes: 39 an entry instead of 256."""
    return zlib.compress(to_msgpack(table), 1)


def decode_table(data: bytes) -> RoutingTable:
    """Return the table of `encode_table`."""
    return msgspec.msgpack.decode(zlib.decompress(data), type=RoutingTable)
