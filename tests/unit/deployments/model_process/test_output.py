"""The output of a model's process in that of the replica."""

import os
import sys
from io import StringIO

import pytest

from deployments.model_process.output import Output


def copied(written: bytes, name: str = "m") -> Output:
    reading, writing = os.pipe()
    output = Output(name, os.fdopen(reading, "rb"))
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(written)
    output.join(60)
    return output


def test_lines_of_the_model_have_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    output = copied(b"one\r\n\nthe last, without an end")
    assert capsys.readouterr() == ("m: one\nm: \nm: the last, without an end\n", "")
    assert list(output.last) == ["one", "", "the last, without an end"]


@pytest.mark.parametrize("at", ["{}0102 03:04:05.678901", "2026-01-02T03:04:05Z {}"])
def test_lines_of_the_log_stay_as_they_are(capsys: pytest.CaptureFixture[str], at: str) -> None:
    lines = {letter: f'{at.format(letter)} 1234 file.py:12] "message"' for letter in "IWEF"}
    copied("\n".join(lines.values()).encode())
    found = capsys.readouterr()
    assert found.out == lines.pop("I") + "\n"
    assert found.err.splitlines() == list(lines.values())


def test_a_line_that_only_begins_like_one_of_the_log_has_the_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    copied(b"E0102 is an error of mine\nERROR\n")
    assert capsys.readouterr() == ("m: E0102 is an error of mine\nm: ERROR\n", "")


def test_odd_bytes_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    copied(b"\xff\x00 gr\xc3\xbcn\n")
    assert capsys.readouterr().out == "m: \\xff\x00 grün\n"


def test_a_very_long_line_comes_in_pieces_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    copied(b"a" + "ü".encode() * 50_000 + b"\nnext\n")
    pieces = capsys.readouterr().out.splitlines()
    assert all(piece.startswith("m: ") and len(piece) < 10_000 for piece in pieces)
    assert "".join(piece[3:] for piece in pieces) == "a" + "ü" * 50_000 + "next"


def test_only_the_last_lines_are_kept() -> None:
    output = copied(b"".join(b"%d\n" % number for number in range(1000)))
    assert list(output.last) == [str(number) for number in range(970, 1000)]


def test_it_reads_on_when_nobody_reads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Broken())
    assert list(copied(b"one\ntwo\n").last) == ["one", "two"]
    closed = StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    assert list(copied(b"one\ntwo\n").last) == ["one", "two"]
