"""Reports to the manager: numbered, again until they have arrived, sooner when hurried."""

import asyncio
import logging

import pytest

from app.core.errors import unavailable
from app.core.observability import reporter
from app.core.observability.reporter import Reporter


class Manager:
    """Takes reports, or fails by what it is given."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.errors: list[Exception] = []
        self.came = asyncio.Event()

    async def take(self, report: str) -> int:
        self.came.set()
        if self.errors:
            raise self.errors.pop(0)
        self.got.append(report)
        return len(self.got)


class Counted(Reporter[str, int]):
    """Reports its number, while there is anything."""

    def __init__(self, manager: Manager, period_s: float = 3600.0) -> None:
        super().__init__("tests", manager.take, period_s)
        self.answers: list[tuple[str, int]] = []
        self.empty = False

    async def collect(self, number: int) -> str | None:
        return None if self.empty else str(number)

    def heard(self, report: str, answer: int) -> None:
        self.answers.append((report, answer))


async def test_a_number_is_used_once_and_only_by_what_is_sent() -> None:
    manager = Manager()
    counted = Counted(manager)
    counted.empty = True
    await counted.report()
    counted.empty = False
    await counted.report()
    await counted.report()
    assert counted.answers == [("1", 1), ("2", 2)]


async def test_what_fails_is_sent_again_and_the_loop_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "_LEAST_S", 0.0)
    manager = Manager()
    counted = Counted(manager)
    manager.errors = [unavailable("away"), ZeroDivisionError("broken")]
    with caplog.at_level(logging.DEBUG, "app.core.observability.reporter"):
        running = asyncio.create_task(counted.run())
        for _ in range(3):
            await asyncio.wait_for(manager.came.wait(), 60)
            manager.came.clear()
            counted.hurry()
        await asyncio.sleep(0)
        running.cancel()
    assert manager.got[0] == "1" and counted.answers[0] == ("1", 1)
    assert "tests: reported again: away" in caplog.text and "reporting tests" in caplog.text


def test_a_report_is_new_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = reporter.ReportNumbers()
    assert [numbers.add("a", number) for number in (1, 1, 2, 1, 4)] == [True, False, True, False, True]
    assert numbers.add("b", 1)
    monkeypatch.setattr(reporter, "_INGRESSES", 2)
    assert numbers.add("a", 5) and numbers.add("c", 1)
    assert numbers.add("b", 1), "the one that has been silent for longest is forgotten"
