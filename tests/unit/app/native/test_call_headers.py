"""Header blocks decoded by the extension: the same as by Python, whatever a connection has sent before."""

import gc
import sys
from typing import Any
from unittest.mock import patch

import hpack
import pytest
from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.ingress.http2 import compiled
from app.native.choice import missing
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.framing import CallHead
from app.protocol.grpc.header_blocks import ReadsBlocks
from tests.unit.app.ingress.http2.planes import Side

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
LIMIT = 4096
HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
CALL = [
    *((":method", "POST"), (":scheme", "http"), (":path", "/a/B"), ("te", "trailers")),
    *(("content-type", "application/grpc"), ("grpc-timeout", "5S"), ("x-own", "1")),
]


Reader = ReadsBlocks[CallHead]


def reader(plane: str, max_size: int = LIMIT) -> Reader:
    side = Side(plane, max_header_size=max_size)
    side.close()
    return side.connection._headers


def readers(max_size: int = LIMIT) -> list[Reader]:
    return [reader("python", max_size), reader("native", max_size)]


def outcome(of: Reader, block: bytes) -> object:
    """Return a head, or why the connection ends."""
    try:
        head = of.read(block)
    except h2.Http2Error as error:
        assert error.__context__ is None or error.__suppress_context__, "its text shows addresses"
        return error.code, str(error)
    return type(head), [(type(value), value) for value in head]


def integer(number: int, bits: int, first: int) -> bytes:
    made = encode_integer(number, bits)
    made[0] |= first
    return bytes(made)


def text(value: bytes, is_coded: bool) -> bytes:
    coded = HUFFMAN.encode(value) if is_coded else value
    return integer(len(coded), 7, 0x80 * is_coded) + coded


def literal(index: int, name: bytes, value: bytes, kind: tuple[int, int], coded: bool) -> bytes:
    bits, first = kind
    return integer(index, bits, first) + (b"" if index else text(name, coded)) + text(value, coded)


kinds = st.sampled_from([(6, 0x40), (6, 0x40), (4, 0), (4, 0x10)])
names = st.sampled_from(
    [
        *(b":method", b":path", b":path", b"content-type", b"grpc-timeout", b"grpc-encoding", b"te"),
        *(b"grpc-accept-encoding", b"k-bin", b"-bin", b"bin", b"grpc-", b"x", b"", b"\xff", b"X-Own"),
    ]
)
values = st.one_of(
    st.sampled_from(
        [
            *(b"POST", b"GET", b"post", b"/a/b", b"", b"application/grpc", b"application/grpc+proto"),
            *(
                b"application/grp",
                b"5S",
                b"1H",
                b"250m",
                b"99999999n",
                b"999999999n",
                b"S",
                b"-1S",
                b"5\xb2S",
            ),
            *(
                b"5\0",
                b"0u",
                b"gzip",
                b"identity,gzip",
                b"x\0gzip",
                b"gzi",
                b"AA",
                b"AAA",
                b"A",
                b"?=",
                b"\xff",
            ),
        ]
    ),
    st.binary(max_size=20),
    st.integers(0, 4200).map(lambda size: b"a" * size),
)
indices = st.integers(0, 66) | st.integers(0, 300)
fields = st.one_of(
    st.builds(integer, indices, st.just(7), st.just(0x80)),
    st.builds(literal, st.just(0) | indices, names, values, kinds, st.booleans()),
    st.builds(
        integer, st.sampled_from([0, 31, 32, 100, 1000, 4096, 4097, 1 << 30]), st.just(5), st.just(0x20)
    ),
    st.binary(max_size=6),
    st.integers(0, 7).map(lambda size: b"\xff" + b"\x80" * size + b"\0"),
)
pairs = st.lists(st.tuples(names, values.filter(lambda value: len(value) < 400)), max_size=6)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.lists(fields, max_size=6).map(b"".join), min_size=1, max_size=6))
@example([b"\x40\1a\1b\xbe", b"\xbe\xbf"])
@example([b"\x40\1a\1b", b"\x20\xbe"])
def test_any_blocks_have_the_same_outcome(blocks: list[bytes]) -> None:
    """Up to the first that ends the connection."""
    python, native = readers()
    for block in blocks:
        expected = outcome(python, block)
        assert outcome(native, block) == expected
        if isinstance(expected, tuple) and isinstance(expected[0], int):
            return


@settings(deadline=None)
@given(
    st.lists(pairs, max_size=30), st.lists(st.sampled_from([0, 50, 300, 4096]), max_size=30), st.booleans()
)
def test_calls_of_a_client_have_the_same_heads(calls: list[Any], sizes: list[int], is_coded: bool) -> None:
    """As one encoder writes them, with a table that is full, and changes its size."""
    encoder, (python, native) = hpack.Encoder(), readers(1 << 16)
    for number, sent in enumerate(calls):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        block = encoder.encode([*CALL, *sent], huffman=is_coded)
        expected = outcome(python, block)
        assert outcome(native, block) == expected


def test_a_table_is_filled_to_its_last_entry() -> None:
    python, native = readers(1 << 16)
    for number in range(300):
        sizes = (0, 1, 4000, 4064, 4065) if number % 50 == 0 else (0, 1)
        block = b"".join(literal(0, b"", b"v" * size, (6, 0x40), False) for size in sizes)
        seen = b"".join(integer(index, 7, 0x80) for index in (62, 63))
        for each in (block, seen):
            expected = outcome(python, each)
            assert outcome(native, each) == expected
        last = 61 + len(python._decoder.header_table.dynamic_entries)  # type: ignore[attr-defined]
        assert outcome(native, integer(last, 7, 0x80)) == outcome(python, integer(last, 7, 0x80))
    assert outcome(native, integer(last + 1, 7, 0x80)) == (h2.COMPRESSION_ERROR, "malformed header block")


@pytest.mark.parametrize("symbol", range(256))
def test_every_symbol_is_decoded(symbol: int) -> None:
    python, native = readers()
    value = bytes([symbol, symbol, 97, symbol])
    for cut in (0, 1):
        coded = HUFFMAN.encode(value)
        block = b"\0\1x" + integer(len(coded) - cut, 7, 0x80) + coded[: len(coded) - cut]
        assert outcome(native, block) == outcome(python, block)
    assert native.read(b"\0\1x" + text(value, True)).metadata == (("x", value.decode("latin-1")),)


@pytest.mark.parametrize("block", [b"\x82" * 200, b"\x40\1a\x7f\xa1\x1e" + b"x" * 4000, b"\x82" * 97])
def test_lists_have_the_same_limit(block: bytes) -> None:
    python, native = readers()
    assert outcome(python, block) == outcome(native, block)
    for each in readers():
        assert outcome(each, b"\x82" * 200) == (h2.ENHANCE_YOUR_CALM, "header list is too large")


def test_the_decoder_leaves_nothing_behind() -> None:
    encoder, make = hpack.Encoder(), Side("native").state.header_reader
    native = make()
    blocks = [encoder.encode([*CALL, ("k-bin", "AA"), ("x", str(number) * 9)]) for number in range(400)]

    def run(some: list[bytes]) -> None:
        for block in some:
            native.read(block)
        for block in (b"\xff\xff", b"\x82" * 200, b"\0\1x\x81\0", b"\x40\1a"):
            outcome(make(), block)

    run(blocks[:200])
    gc.collect()
    before = sys.getallocatedblocks()
    run(blocks[200:])
    gc.collect()
    assert sys.getallocatedblocks() - before < 100


def test_arguments_of_the_decoder_are_checked() -> None:
    _, native = readers()
    with pytest.raises(TypeError):
        native.read(bytearray(b"\x82"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        type(native)()


@pytest.mark.parametrize(
    ("name", "block"), [("decode_metadata", b"\0\5k-bin\1A"), ("refuse_block", b"\xff\xff")]
)
def test_what_python_does_for_the_decoder_may_raise(name: str, block: bytes) -> None:
    with patch.object(compiled, name, side_effect=MemoryError):
        native = reader("native")
    with pytest.raises(MemoryError):
        native.read(block)
