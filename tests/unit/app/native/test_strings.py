"""Strings by C beside Python's way: the same elements and bytes, or nothing."""

import gc
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.datatypes import StringPasses, pack_bytes, unpack_bytes, unpack_text
from app.core.errors import InferError

extension = pytest.importorskip("app.native.extension")

split, join = extension.split_strings, extension.join_strings


@pytest.fixture(autouse=True)
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the functions of `app.core.datatypes` be Python's."""
    monkeypatch.setattr("app.core.datatypes.STRINGS", StringPasses())


def in_python(data: bytes, is_text: bool) -> list[Any] | None:
    try:
        found = unpack_bytes(data)
        return unpack_text(data, len(found)) if is_text else found
    except (InferError, UnicodeDecodeError):
        return None


def head(size: int) -> bytes:
    return size.to_bytes(4, "little")


elements = st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=20)), max_size=20)


@given(elements)
def test_elements_are_joined_as_by_python_and_split_again(given: list[bytes | str]) -> None:
    parts = [part.encode() if isinstance(part, str) else part for part in given]
    data = pack_bytes(given)
    assert join(given) == data
    assert split(data, False) == split(memoryview(data), False) == parts
    assert split(data, True) == in_python(data, True)


@given(st.binary(max_size=60), st.booleans())
@example(b"", False)
@example(b"", False)
@example(head(0) * 3, True)
@example(head(0) * 3, True)
@example(head(2**32 - 1), False)
@example(head(2**31) + b"abcd", False)
@example(head(5) + b"abcd", False)
@example(head(3) + b"abcd", False)
@example(head(4) + b"abcd" + b"\0\0\0", False)
@example(head(2) + b"\xc3\xa9" + head(1) + b"\xc3", True)
@example(head(3) + b"\xed\xa0\x80", True)
@example(head(3) + b"a\0b", True)
def test_hostile_bytes_are_split_as_by_python_or_left_to_it(data: bytes, is_text: bool) -> None:
    assert split(data, is_text) == in_python(data, is_text)


@given(st.lists(st.integers(0, 300), max_size=8), st.lists(st.integers(0, 400), max_size=3), st.data())
def test_changed_lengths_are_split_as_by_python(
    sizes: list[int], cuts: list[int], data: st.DataObject
) -> None:
    wire = bytearray(pack_bytes([bytes(size) for size in sizes]))
    for cut in cuts:
        wire[cut : cut + 1] = data.draw(st.binary(max_size=2))
    assert split(bytes(wire), False) == in_python(bytes(wire), False)


@pytest.mark.parametrize(
    "given", [("a",), "abc", None, [1], [b"a", None], ["\ud800"], [np.str_("a")], [bytearray()]]
)
def test_other_elements_are_left_to_python(given: Any) -> None:
    assert join(given) is None


def test_arguments_are_checked() -> None:
    for arguments in (
        (),
        (b"",),
        ("text", 0, False),
        (b"", "1", False),
        (memoryview(bytes(8))[::2], 1, False),
    ):
        with pytest.raises((TypeError, BufferError)):
            split(*arguments)


@pytest.mark.parametrize("expected", [-1, 0, 1, 3, 2**70])
def test_another_number_of_elements_is_refused_as_by_python(
    expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = StringPasses()
    passes.use_compiled(split, join)
    monkeypatch.setattr("app.core.datatypes.STRINGS", passes)
    data = pack_bytes(["a", b"b"])
    for unpack in (unpack_bytes, unpack_text):
        with pytest.raises(InferError, match=f"expected {expected} string elements, got 2"):
            unpack(data, expected)
    assert unpack_text(data, 2) == ["a", "b"]
    assert unpack_bytes(data) == unpack_bytes(data, 2) == [b"a", b"b"]
    parts: tuple[str | bytes, ...] = ("a", b"b")
    assert pack_bytes(part for part in parts) == pack_bytes([np.str_("a"), b"b"]) == data
    with pytest.raises(UnicodeDecodeError):
        unpack_text(pack_bytes([b"\xff"]), 1)


def test_nothing_is_left_behind() -> None:
    def run() -> None:
        split(head(3) + b"abc" + head(9), False)
        split(head(1) + b"\xff", True)
        split(head(1) + b"a", True)
        join([*map(str, range(20)), b"bytes"])
        join(["text", 1])

    run()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(300):
        run()
    assert sys.getallocatedblocks() - before < 100
