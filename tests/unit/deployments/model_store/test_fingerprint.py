"""Fingerprints of a model's files."""

import os
from pathlib import Path

from deployments.model_store.fingerprint import files_of, fingerprint, version_fingerprint
from tests.unit.deployments.model_store.repository_files import add, entry_of


def touch(path: Path) -> None:
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))


def test_linked_directories_belong_to_the_model(tmp_path: Path, repository: Path) -> None:
    blob = add(tmp_path, "cache", {"snapshot/weights.bin": "w"}) / "snapshot" / "weights.bin"
    path = add(repository, "m", {"1/model.py": ""})
    (path / "1" / "weights").symlink_to(blob.parent)
    entry = entry_of(repository)
    before = version_fingerprint(entry, 1)
    assert before == version_fingerprint(entry, 1)
    touch(blob)
    assert version_fingerprint(entry, 1) != before


def test_links_to_what_is_above_are_not_followed(tmp_path: Path, repository: Path) -> None:
    store = add(tmp_path, "store", {"1/model.py": "", "shared/x": ""})
    for name, target in {"self": ".", "up": "..", "root": "/", "repository": str(repository)}.items():
        (store / "shared" / name).symlink_to(target)
    (repository / "m").symlink_to(store)
    (repository / "n").symlink_to(store)
    found = [path for path, _, _ in files_of(repository / "m")]
    # The repository is not above the store, and has the store twice; both are where the walk is already.
    assert sorted(found) == ["1/model.py", "shared/x"]


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
