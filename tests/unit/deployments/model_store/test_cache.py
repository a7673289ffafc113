"""Cached directories of a node: made once, leased, evicted in the order of their use."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.model_store.cache import NodeCache


def writes(size: int, calls: list[Path] | None = None) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        if calls is not None:
            calls.append(directory)
        (directory / "file").write_bytes(bytes(size))

    return write


def test_directory_is_made_once(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "c", 100)
    calls: list[Path] = []
    assert cache.lease("a") is None
    first = cache.fill("a", 10, writes(10, calls))
    second = NodeCache(tmp_path / "c", 100).fill("a", 10, writes(10, calls))
    assert len(calls) == 1
    assert first.directory == second.directory == tmp_path / "c" / "a"
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700


def test_parent_directories_are_private_too(tmp_path: Path) -> None:
    """The sockets of replicas are there too, and need a directory that others cannot enter."""
    NodeCache(tmp_path / "user" / "c", 100).fill("a", 1, writes(1))
    assert (tmp_path / "user").stat().st_mode & 0o777 == 0o700


def test_second_fill_waits_for_the_first(tmp_path: Path) -> None:
    started, go = Event(), Event()
    calls: list[Path] = []

    def slow(directory: Path) -> None:
        started.set()
        assert go.wait(60)
        writes(1, calls)(directory)

    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(NodeCache(tmp_path, 100).fill, "a", 1, slow)
        assert started.wait(60)
        two = threads.submit(NodeCache(tmp_path, 100).fill, "a", 1, slow)
        go.set()
        assert one.result(60).directory == two.result(60).directory
    assert len(calls) == 1


def test_leased_directory_is_kept(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 100)
    lease = cache.fill("a", 10, writes(10))
    assert not NodeCache(tmp_path, 100).remove("a")
    lease.release()
    assert NodeCache(tmp_path, 100).remove("a")
    assert cache.listing() == []


def test_least_recently_leased_is_evicted(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 30)
    for name in ("a", "b", "c"):
        cache.fill(name, 10, writes(10)).release()
    for age, name in enumerate(("b", "c", "a")):
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    cache.fill("d", 10, writes(10)).release()
    assert sorted(cache.listing()) == ["a", "c", "d"]


def test_full_cache_is_reported(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 30)
    held = cache.fill("a", 25, writes(25))
    with pytest.raises(InferError) as caught:
        cache.fill("b", 10, writes(10))
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "25 of 30 bytes are in use" in caught.value.message
    held.release()
    cache.fill("b", 10, writes(10))
    assert cache.listing() == ["b"]


def test_failed_fill_leaves_nothing(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 100)

    def broken(directory: Path) -> None:
        (directory / "half").write_bytes(b"1")
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        cache.fill("a", 1, broken)
    assert cache.listing() == []
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_partial_fill_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    part = tmp_path / ".0123"
    tmp_path.chmod(0o700)
    part.mkdir()
    (part / "half").write_bytes(b"1")
    os.utime(part, (1, 1))
    NodeCache(tmp_path, 100).fill("a", 1, writes(1))
    assert not part.exists()


def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "c"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    with pytest.raises(PermissionError):
        NodeCache(root, 100).fill("a", 1, writes(1))
    shutil.rmtree(root)
    root.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        NodeCache(root, 100).fill("a", 1, writes(1))
