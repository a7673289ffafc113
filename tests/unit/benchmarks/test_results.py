"""A benchmark's result says what it is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results import recorded


def test_a_recorded_result_has_command_commit_machine_and_what_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["startup", "--rounds", "2"])
    for figure in ("first", "second"):
        with recorded("startup", True, tmp_path):
            print(figure)
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    assert path.name.endswith("-startup.md")
    assert text.count("- command: `python -m benchmarks.startup --rounds 2`") == 2
    assert all(f"\n- {name}: " in text for name in ("commit", "machine", "Python"))
    assert text.index("```text\nfirst\n```") < text.index("```text\nsecond\n```")
    assert capsys.readouterr().out.startswith("first\nwrote ")


def test_a_benchmark_that_fails_or_is_not_recorded_writes_no_result(tmp_path: Path) -> None:
    with recorded("startup", False, tmp_path):
        print("nothing")
    with pytest.raises(ValueError), recorded("startup", True, tmp_path):
        raise ValueError
    assert not list(tmp_path.iterdir())
