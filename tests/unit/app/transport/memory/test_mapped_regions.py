"""Which files of clients are mapped, and for how long."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.core.errors import internal
from app.core.tensors import RegionSlice

pytest.importorskip("app.native.extension")

from app.transport.memory.mapped_regions import IDLE_S, MAX_MAPPED, MappedRegions

NAME = f"nereid-mapped-{os.getpid()}-"
DATA = bytes(range(256)) * 40


class Client:
    """Files in shared memory, and mappings of them whose clock the test owns."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.waiting: list[Callable[[], None]] = []
        self.regions = MappedRegions(self.open, self.later)

    def open(self, place: RegionSlice) -> int:
        self.opened.append(place.key)
        try:
            return os.open(path(place.key), os.O_RDWR)
        except FileNotFoundError:
            raise internal("gone") from None

    def later(self, delay: float, function: Callable[[], None]) -> None:
        assert delay == IDLE_S
        self.waiting.append(function)

    def second(self) -> None:
        """Let a second pass."""
        waiting, self.waiting = self.waiting, []
        for function in waiting:
            function()

    def read(self, key: str = "a", offset: int = 0, nbytes: int = 9) -> bool:
        place = RegionSlice("r", offset, nbytes, key, path(key).stat().st_ino)
        found = bytearray(nbytes)
        done = self.regions.read(place, memoryview(found))
        assert not done or found == DATA[offset : offset + nbytes]
        return done


def path(key: str) -> Path:
    return Path("/dev/shm", NAME + key)


def mapped() -> list[str]:
    """The keys of all mapped files, those without a name too."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split(NAME)[1].split()[0] for line in maps if NAME in line})


@pytest.fixture
def client() -> Iterator[Client]:
    path("a").write_bytes(DATA)
    made = Client()
    yield made
    made.waiting.clear()
    del made.regions  # a circle
    for file in Path("/dev/shm").glob(f"{NAME}*"):
        file.unlink()


def test_file_is_mapped_at_its_second_use_and_opened_once(client: Client) -> None:
    assert not client.read() and mapped() == []
    assert client.read() and client.read(offset=700) and mapped() == ["a"]
    assert client.opened == ["a"]
    place = RegionSlice("r", 5, 3, "a", path("a").stat().st_ino)
    assert client.regions.write(place, memoryview(b"new"))
    assert path("a").read_bytes()[5:8] == b"new"


def test_file_that_is_not_used_is_unmapped(client: Client) -> None:
    client.read()
    client.read()
    client.second()
    assert mapped() == ["a"], "it was used within the second"
    client.second()
    assert mapped() == [] and client.waiting == [], "nothing runs without mapped files"
    assert not client.read() and client.read(), "it is used once without a mapping again"


def test_deleted_file_is_unmapped_within_a_second(client: Client) -> None:
    client.read()
    client.read()
    path("a").unlink()
    client.second()
    assert mapped() == []


def test_deleted_file_is_unmapped_before_another_is_mapped(client: Client) -> None:
    path("b").write_bytes(DATA)
    client.read()
    client.read()
    path("a").unlink()
    client.read("b")
    assert client.read("b") and mapped() == ["b"]


def test_file_that_has_grown_is_mapped_anew(client: Client) -> None:
    path("a").write_bytes(DATA[:5000])
    client.read()
    client.read()
    path("a").write_bytes(DATA)
    assert not client.read(offset=9000) and mapped() == []
    assert not client.read(offset=9000) and client.read(offset=9000)


def test_file_that_cannot_be_mapped_is_left_to_the_caller(client: Client) -> None:
    path("empty").touch()
    assert not client.read("empty", nbytes=0) and not client.read("empty", nbytes=0)
    gone = RegionSlice("r", 0, 5, "gone", 1)
    assert not client.regions.read(gone, memoryview(bytearray(5)))
    assert not client.regions.write(gone, memoryview(bytes(5)))
    assert client.opened == ["empty", "gone"]


def test_mapped_files_are_bounded(client: Client) -> None:
    keys = [f"{number:03}" for number in range(MAX_MAPPED + 3)]
    for key in keys:
        path(key).write_bytes(DATA)
        client.read(key)
        assert client.read(key)
        assert client.read(keys[0]) or key == keys[0], "the file that was used last is kept"
    assert mapped() == sorted([keys[0], *keys[4:]])
