"""The lines of the audit."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from app.access.audit import Audit, append

CALL: dict[str, Any] = {"protocol": "http", "who": "ci", "peer": "127.0.0.1:9", "action": "load"}


def test_a_file_gets_a_json_line_for_each_call(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = Audit(str(path))
    audit.write(**CALL, subject="m\n", outcome="ok")
    path.rename(tmp_path / "rotated")
    audit.write(**CALL, subject="", outcome="failed", reason="x" * 1000)
    (first,) = map(json.loads, (tmp_path / "rotated").read_text().splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {**CALL, "subject": "m\n", "outcome": "ok"}
    (second,) = map(json.loads, path.read_text().splitlines())
    assert (second["outcome"], len(second["reason"])) == ("failed", 300)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_log_gets_the_line_without_a_file(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Audit().write(**CALL, subject="m\nforged", outcome="denied", reason="no")
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("audit {") and "\n" not in text
    assert json.loads(text.removeprefix("audit "))["subject"] == "m\nforged"


def test_a_file_that_cannot_be_written_is_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Audit(str(tmp_path)).write(**CALL, subject="m", outcome="ok")
    assert caplog.records[0].levelname == "ERROR" and "Is a directory" in caplog.text


def test_lines_are_appended_whole(tmp_path: Path) -> None:
    for line in (b"a\n", b"b\n"):
        append(str(tmp_path / "audit"), line)
    assert (tmp_path / "audit").read_bytes() == b"a\nb\n"
