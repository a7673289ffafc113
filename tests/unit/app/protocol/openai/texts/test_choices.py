"""Texts that are ended by some texts, and characters that are cut: the same wherever the pieces are."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.protocol.openai.texts.choices import Choice, StopTexts
from app.protocol.openai.texts.tensors import Piece

ALPHABET = "abä"


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def ended(text: str, stops: list[str]) -> str:
    """The text up to the stop that is complete first; of several, the longest."""
    for end in range(len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, found))]
    return text


@given(
    st.text(ALPHABET, max_size=30),
    st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 30), max_size=10),
)
def test_a_text_ends_by_the_stop_that_is_complete_first(text: str, stops: list[str], cuts: list[int]) -> None:
    found = StopTexts(stops)
    parts = []
    for piece in pieces(text, cuts):
        parts.append(found.push(piece))
        if found.stopped:
            break
    else:
        parts.append(found.finish())
    assert "".join(parts) == ended(text, stops)
    assert found.stopped == any(stop in text for stop in stops)


@given(st.text(max_size=20), st.lists(st.integers(0, 80), max_size=10))
def test_characters_are_whole_wherever_their_bytes_are_cut(text: str, cuts: list[int]) -> None:
    raw = text.encode(errors="replace")
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    choice = Choice(None, [])
    parts = [choice.push(Piece(raw[start:end]), end == len(raw)) for start, end in pairwise(places)] or [
        choice.push(Piece(b""), True)
    ]
    assert "".join(parts) == raw.decode()
    assert choice.reason == "stop" and choice.length == len(raw.decode())


def test_a_reason_is_the_models_or_follows_from_its_tokens() -> None:
    for said, tokens, limit, reason in (
        ("length", 1, None, "length"),
        ("abort", 2, 2, "length"),
        ("", 1, 2, "stop"),
        ("", None, 2, "stop"),
    ):
        choice = Choice(limit, [])
        choice.push(Piece(b"a", said, output_tokens=tokens), True)
        assert choice.reason == reason
