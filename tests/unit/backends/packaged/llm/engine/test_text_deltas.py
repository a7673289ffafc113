"""Pieces of a generated text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.packaged.llm.engine.text_deltas import TextDeltas


def as_bytes(tokens: Sequence[int]) -> str:
    """Decode tokens that are bytes, as byte-level tokenizers do."""
    return bytes(tokens).decode(errors="replace")


def pieces(text: str | bytes, **options: object) -> list[str]:
    deltas = TextDeltas(as_bytes, **options)  # type: ignore[arg-type]
    found = []
    for token in text.encode() if isinstance(text, str) else text:
        found.append(deltas.push(token))
        if deltas.stopped:
            return found
    return [*found, deltas.finish()]


def test_character_is_whole() -> None:
    assert pieces("aé€") == ["a", "", "é", "", "", "€", ""]


@given(st.binary(max_size=40))
def test_pieces_are_the_text(data: bytes) -> None:
    assert "".join(pieces(data)) == as_bytes(data)


@given(st.text(max_size=20))
def test_no_piece_ends_inside_a_character(text: str) -> None:
    found = pieces(text)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in found)
    assert "".join(found) == text


def test_text_that_is_wanted_at_once_is_decoded_once() -> None:
    decoded = list[str]()

    def decode(tokens: Sequence[int]) -> str:
        decoded.append(as_bytes(tokens))
        return decoded[-1]

    deltas = TextDeltas(decode, at_once=True)
    assert [*map(deltas.push, "aé€".encode()), deltas.finish()] == ["", "", "", "", "", "", "aé€"]
    assert decoded == ["aé€"]
    stopped = pieces("one two", stop=["e t"], at_once=True)
    assert len(stopped) == len("one t") and "".join(stopped) == "on"


def words(tokens: Sequence[int]) -> str:
    """Decode tokens that are words, without the first one's space, as SentencePiece does."""
    return "".join((" the", " old", " man", "s", "")[token] for token in tokens).removeprefix(" ")


def test_space_between_words_is_kept() -> None:
    deltas = TextDeltas(words)
    assert [deltas.push(token) for token in (0, 1, 4, 2, 3)] == ["the", " old", "", " man", "s"]


def test_byte_fallback_is_one_character() -> None:
    """A run of bytes that is no text yet is decoded to a replacement for each of them, as Llama's does."""

    def decode(tokens: Sequence[int]) -> str:
        try:
            return bytes(tokens).decode()
        except UnicodeDecodeError:
            return "\N{REPLACEMENT CHARACTER}" * len(tokens)

    deltas = TextDeltas(decode)
    assert [deltas.push(token) for token in "é€".encode()] == ["", "é", "", "", "€"]


@pytest.mark.parametrize(
    ("stop", "include", "expected"),
    [
        (["STOP"], False, "one S two "),
        (["STOP"], True, "one S two STOP"),
        (["three", "wo S"], False, "one S t"),
        (["never"], False, "one S two STOP three"),
    ],
)
def test_stop_text(stop: list[str], include: bool, expected: str) -> None:
    found = pieces("one S two STOP three", stop=stop, include_stop=include)
    assert "".join(found) == expected


def test_beginning_of_a_stop_text_is_held_back() -> None:
    assert pieces("a STO b", stop=["STOP"]) == ["a", " ", "", "", "", "STO ", "b", ""]
    assert pieces("a ST", stop=["STOP"])[-1] == "ST"


def test_stop_text_at_once_with_what_was_held() -> None:
    deltas = TextDeltas(lambda tokens: "".join("ab STOP c" if token else "x" for token in tokens), ["STOP"])
    assert [deltas.push(0), deltas.push(1)] == ["x", "ab "] and deltas.stopped and deltas.finish() == ""


def test_stop_text_that_comes_too_early_is_text() -> None:
    deltas = TextDeltas(as_bytes, ("ab",))
    found = "".join(deltas.push(token, stops=index > 1) for index, token in enumerate(b"abab"))
    assert (found, deltas.stopped) == ("ab", True)
