"""Fingerprints of a model's files."""

import os
from pathlib import Path

from deployments.model_store.fingerprint import fingerprint, version_fingerprint
from tests.unit.deployments.model_store.repository_files import add, entry_of


def touch(path: Path) -> None:
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))


def test_fingerprint_changes_with_the_files(repository: Path) -> None:
    path = add(repository, "m", {"config.pbtxt": "", "1/model.py": "", "2/model.py": "", "labels.txt": "a"})
    (path / "3").symlink_to(path / "2")

    def prints() -> list[str]:
        entry = entry_of(repository)
        versions = [version_fingerprint(entry, version) for version in (1, 2, 3)]
        return [fingerprint(entry), *versions]

    def changed(before: list[str]) -> list[bool]:
        return [old != new for old, new in zip(before, prints(), strict=True)]

    before = prints()
    assert changed(before) == [False] * 4
    touch(path / "config.pbtxt")
    assert changed(before) == [True, False, False, False]
    before = prints()
    touch(path / "1" / "model.py")
    assert changed(before) == [True, True, False, False]
    before = prints()
    touch(path / "2" / "model.py")
    assert changed(before) == [True, False, True, True]
    before = prints()
    (path / "labels.txt").write_text("ab")
    assert changed(before) == [True, True, True, True]
    before = prints()
    add(repository, "m", {"configs/x.pbtxt": ""})
    assert changed(before) == [True, False, False, False]
    before = prints()
    (path / "1" / "model.py").unlink()
    assert changed(before) == [True, True, False, False]
