"""Which lines of Ray's processes are printed, and where the others go."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.core.files.private_files import private_root
from app.ray_adapter import worker_output
from app.ray_adapter.worker_output import WorkerOutput, open_ray_log

OURS = "I1122 15:33:49.538472 9959 lifecycle.py:187] \"successfully loaded 'a' version 1\""
SERVES = "WARNING 2026-11-22 15:34:08,202 nereid_manager 75gctjig -- Failed to get queue length"
GRPC = "I1122 17:23:50.352151   21687 chttp2_transport.cc:1403] ipv4:127.0.0.1:43461: Got goaway"
FATAL = "[2026-11-22 15:34:08,202 E 9959 9959] core_worker.cc:12: lost"


class Kept(logging.Handler):
    """Keeps the lines of Ray, as `process: line`."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {record.getMessage()}")


def batch(lines: Sequence[str], title: str = "ServeReplica:a:a", **more: Any) -> dict[str, Any]:
    return {"lines": lines, "actor_name": title, "pid": 7, "is_err": False, **more}


@pytest.mark.parametrize(
    "line",
    [OURS, "2026-11-22T15:33:49Z I 9959 a.py:1] text", "printed by a model", "| simple | 1 | READY |", ""],
)
def test_line_of_a_replica_is_printed_as_it_is(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    rays = Kept()
    WorkerOutput(rays)(batch([line]))
    assert capsys.readouterr().out == line + "\n"
    assert rays.lines == []


@pytest.mark.parametrize(
    ("title", "line"),
    [
        ("ServeReplica:a:a", SERVES),
        ("ServeReplica:a:a", FATAL),
        ("ServeReplica:a:a", GRPC),
        ("ServeController", "Removing 1 replica"),
        ("", "Task failed. There are infinite retries remaining"),
    ],
)
def test_line_of_ray_is_logged(title: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    rays = Kept()
    WorkerOutput(rays)(batch([line], title))
    assert capsys.readouterr() == ("", "")
    assert rays.lines == [f"{title or 7}: {line}"]


def test_thoughts_of_the_autoscaler_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    rays = Kept()
    WorkerOutput(rays)(batch(["Pending Demands:"], "", pid="autoscaler"))
    assert (capsys.readouterr().out, rays.lines) == ("", [])


def test_traceback_stays_with_the_line_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    rays, trace = Kept(), ["Traceback (most recent call last):", "ValueError: bad"]
    output = WorkerOutput(rays)
    output(batch([SERVES, trace[0]]))
    output(batch([trace[1], OURS, *trace]))
    assert capsys.readouterr().out.splitlines() == [OURS, *trace]
    assert [line.partition(": ")[2] for line in rays.lines] == [SERVES, *trace]


def test_processes_do_not_share_what_was_before(capsys: pytest.CaptureFixture[str]) -> None:
    output = WorkerOutput(Kept())
    output(batch([SERVES]))
    output(batch(["printed"], pid=8))
    output(batch(["to stderr"], is_err=True))
    assert capsys.readouterr() == ("printed\n", "to stderr\n")


def test_ended_processes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_output, "_PROCESSES", 3)
    output = WorkerOutput(Kept())
    for pid in range(10):
        output(batch([SERVES], pid=pid))
    assert len(output._in_rays) == 3


def test_log_file_is_private_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(worker_output, "_FILES_KEPT", 3)
    directory = Path(private_root(), "logs")
    directory.mkdir()
    directory.chmod(0o700)
    for number in range(5):
        (directory / f"ray-{number}.log").touch()
        os.utime(directory / f"ray-{number}.log", (number, number))
    handler = open_ray_log()
    handler.handle(logging.LogRecord("raylet", logging.INFO, "", 0, "%d workers", None, None))
    handler.close()
    new = directory / f"ray-{os.getpid()}.log"
    assert {path.name for path in directory.iterdir()} == {"ray-3.log", "ray-4.log", new.name}
    assert new.read_text().endswith("raylet: %d workers\n")
