"""Files that outlive the server."""

import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deployments.rollout.storage import state_files
from deployments.rollout.storage.state_files import StateFiles

HOLD = """
import sys
from pathlib import Path
from deployments.rollout.storage.state_files import StateFiles
StateFiles(Path(sys.argv[1]), lambda _: "/models").write("rollout", "m", b"1")
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def files(root: Path, repository: str = "/models") -> StateFiles:
    return StateFiles(root, lambda _: repository)


def read(root: Path, *repositories: str, kind: str = "rollout") -> list[tuple[bytes, bool]]:
    other = files(root)
    try:
        return [*other.read(kind, repositories or ("/models",))]
    finally:
        other.close()


def test_what_is_written_is_read_by_kind_and_repository(root: Path) -> None:
    made = files(root)
    made.write("rollout", "m", b"1")
    made.write("rollout", "m", b"2")
    made.write("rollout", "a/b", b"3")
    made.write("served", "m", b"4")
    bucket = files(root, "s3://bucket")
    bucket.write("rollout", "m", b"5")
    made.close()
    bucket.close()
    assert {text for text, _ in read(root)} == {b"2", b"3"}
    assert read(root, kind="served") == [(b"4", True)]
    assert len(read(root, "/models", "s3://bucket")) == 3 and read(root, "/elsewhere") == []


def test_files_are_private_and_whole(root: Path) -> None:
    made = files(root)
    made.write("rollout", "m", b"1")
    (directory,) = root.iterdir()
    assert stat.S_IMODE(root.stat().st_mode) == stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert sorted(path.suffix for path in directory.iterdir()) == ["", ".json"]
    made.close()


def test_a_server_that_still_ends_is_waited_for(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        ending = threading.Timer(0.5, holder.kill)
        ending.start()
        assert read(root) == [(b"1", True)]


def test_another_server_keeps_its_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "OWN_S", 0.0)
    made = files(root)
    made.write("rollout", "m", b"1")
    assert read(root) == [(b"1", False)]
    other = files(root)
    with pytest.raises(OSError, match=r"another server of this repository uses '.*--state-directory"):
        other.write("rollout", "m", b"2")
    made.close()
    other.write("rollout", "m", b"2")
    other.close()


def test_the_oldest_repositories_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "MAX_REPOSITORIES", 2)
    root = tmp_path / "rollouts"
    for number in range(4):
        known = {*root.iterdir()} if root.exists() else set()
        made = files(root, f"/{number}")
        made.write("rollout", "m", b"%d" % number)
        made.close()
        (new,) = {*root.iterdir()} - known
        os.utime(new, (number, number))
    assert state_files.opened(str(tmp_path), lambda _: "/models") is not None
    assert {text for text, _ in read(root, *(f"/{number}" for number in range(4)))} == {b"2", b"3"}


def test_the_oldest_files_are_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "MAX_FILES", 3)
    made = files(root)
    for number in range(5):
        made.write("rollout", f"m{number}", b"%d" % number)
        for at, path in enumerate(sorted(root.rglob("*.json"), key=lambda path: path.read_bytes())):
            os.utime(path, (at, at))
    made.close()
    assert {text for text, _ in read(root)} == {b"2", b"3", b"4"}


def test_threads_of_a_server_are_no_other_servers(tmp_path: Path) -> None:
    for number in range(50):
        files = StateFiles(tmp_path / str(number), str)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda kind: files.write(kind, "m", b"{}"), "abcd"))  # noqa: B023
        files.close()
