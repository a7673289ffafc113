"""Reads and writes of plain connections."""

import asyncio
from select import EPOLLIN
from typing import Any

import pytest

from nereid_client.tools.perf.generator.plain import Link, Links


class FakeSocket:
    """Has so many bytes to be read, and keeps how many were asked for."""

    def __init__(self, size: int) -> None:
        self.left, self.asked = size, list[int]()

    def fileno(self) -> int:
        return 3

    def recv(self, most: int) -> bytes:
        self.asked.append(most)
        taken, self.left = min(self.left, most), max(self.left - most, 0)
        return bytes(taken)

    def send(self, data: bytes) -> int:
        return len(data)


class Received:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def data_received(self, data: bytes) -> None:
        self.sizes.append(len(data))


def read(size: int, times: int) -> tuple[list[int], list[int]]:
    """Return how many bytes were asked for, and how many came."""
    made, protocol = FakeSocket(size), Received()
    none: Any = None
    link = Link(none, none, made, protocol)  # type: ignore[arg-type]
    for _ in range(times):
        link.ready(EPOLLIN)
    return made.asked, protocol.sizes


def test_short_answers_are_read_into_little_memory_and_long_ones_in_few_reads() -> None:
    asked, came = read(size=100_000, times=3)
    assert came == [16_384, 65_536, 18_080] and asked[1:] == [65_536] * 2
    assert read(size=200, times=1) == ([16_384], [200])


@pytest.mark.parametrize(("alone", "waits"), [(False, [0]), (True, [0, 0.01])])
def test_answers_are_awaited_beyond_the_next_tick_once_nothing_else_is_urgent(
    alone: bool, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def poll(seconds: float) -> list[tuple[int, int]]:
        asked.append(seconds)
        return [] if seconds else [(-1, EPOLLIN)]

    with asyncio.Runner() as runner:
        links = Links(runner.get_loop(), after=lambda: None)
        links.alone = alone
        monkeypatch.setattr(links, "_poll", poll)
        links._wake()
        links.close()
    assert asked == waits
