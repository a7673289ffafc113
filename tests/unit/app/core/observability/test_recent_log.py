"""The last lines of a log in memory."""

import logging
from collections.abc import Iterator

import pytest

from app.core.observability import log
from app.core.observability.log import LogConfig, configure_logging, keep_recent
from app.core.observability.recent_log import MAX_LINE, RecentLines

LOGGER = logging.getLogger(log.PACKAGES[0] + ".test")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecentLines]:
    loggers = [logging.getLogger(package) for package in log.PACKAGES]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    monkeypatch.setattr(log, "_recent", None)
    configure_logging(LogConfig())
    kept = RecentLines(3)
    keep_recent(kept)
    yield kept
    for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


def test_last_lines_are_kept_from_a_number_and_level_on(lines: RecentLines) -> None:
    for number in range(4):
        LOGGER.info("line %d", number)
    # Not by the logger: pytest reports what it is given, and cannot send this text to another process.
    record = LOGGER.makeRecord(LOGGER.name, logging.ERROR, __file__, 1, "broken \ud800", (), None)
    assert lines in logging.getLogger(log.PACKAGES[0]).handlers
    lines.handle(record)
    found = lines.read()
    assert [(line.number, line.level, line.text) for line in found] == [
        (3, "info", "line 2"),
        (4, "info", "line 3"),
        (5, "error", "broken \\ud800"),
    ]
    assert found[0].place.startswith("test_recent_log.py:")
    assert [line.number for line in lines.read(level="warning")] == [5]
    assert [line.number for line in lines.read(after=4)] == [5]


def test_line_is_bounded_and_has_its_traceback(lines: RecentLines) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        LOGGER.exception("failed")
    LOGGER.warning("x" * (2 * MAX_LINE))
    with_traceback, long = lines.read()
    assert "ValueError: why" in with_traceback.text and len(long.text) == MAX_LINE


def test_settings_of_the_log_hold_for_it_too(lines: RecentLines) -> None:
    configure_logging(LogConfig(log_info=False))
    LOGGER.info("not wanted")
    LOGGER.error("wanted")
    assert [line.text for line in lines.read()] == ["wanted"]


def test_a_newer_one_takes_the_place(lines: RecentLines) -> None:
    newer = RecentLines()
    keep_recent(newer)
    LOGGER.warning("for the newer")
    assert lines.read() == [] and len(newer.read()) == 1
    assert lines not in logging.getLogger(log.PACKAGES[0]).handlers
