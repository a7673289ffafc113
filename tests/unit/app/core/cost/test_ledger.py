"""The ledger's files: private, additive, bounded, and readable whatever has happened to their writers."""

import os
import stat
import threading
from pathlib import Path

import pytest

from app.core.cost.ledger import LedgerWriter, read_hours
from app.core.cost.rows import LedgerRow, began_at

HOURS = [f"2026-11-26T{hour:02}:00:00Z" for hour in range(24)]


def row(hour: str = HOURS[21], token: str = "anna", requests: int = 1) -> LedgerRow:
    return LedgerRow(hour, "usage", "node", "wine", "1", token, cpu_seconds=0.25, requests=requests)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cost"


def rows(directory: Path, since: float = 0.0) -> list[LedgerRow]:
    return [each for hour in read_hours([directory], since) for each in hour.rows]


def test_what_is_appended_is_read_as_one_row_of_each_key(directory: Path) -> None:
    writer = LedgerWriter(directory)
    writer.append([row(requests=1), row(requests=2), row(token="ben")])
    writer.append([row(requests=4)])
    assert [(each.token, each.requests) for each in rows(directory)] == [("anna", 7), ("ben", 1)]
    assert rows(directory)[0].cpu_seconds == 0.75


def test_the_files_are_their_owners_alone(directory: Path) -> None:
    LedgerWriter(directory).append([row()])
    (path,) = directory.iterdir()
    assert path.name == "cost-20261126T21.jsonl"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(directory.stat().st_mode)) == (0o600, 0o700)
    directory.chmod(0o755)
    with pytest.raises(PermissionError):
        LedgerWriter(directory).append([row()])


def test_a_line_that_was_cut_off_costs_itself_alone(directory: Path) -> None:
    LedgerWriter(directory).append([row(), row(token="ben")])
    (path,) = directory.iterdir()
    os.truncate(path, path.stat().st_size - 5)
    (hour,) = read_hours([directory])
    assert ([each.token for each in hour.rows], hour.broken) == (["anna"], 0)
    LedgerWriter(directory).append([row(requests=2)])
    (hour,) = read_hours([directory])
    assert ([(each.token, each.requests) for each in hour.rows], hour.broken) == ([("anna", 3)], 1)


def test_lines_of_something_else_are_counted(directory: Path) -> None:
    LedgerWriter(directory).append([row()])
    (path,) = directory.iterdir()
    with path.open("a") as file:
        file.write('{"hour": 1}\n[]\n{"hour": "2020-01-01T00:00:00Z", "kind": "usage", "node": ""}\n')
    (hour,) = read_hours([directory])
    assert (len(hour.rows), hour.broken) == (1, 3)


def test_hours_before_since_and_from_until_on_are_left_out(directory: Path) -> None:
    LedgerWriter(directory).append(row(hour) for hour in HOURS)
    since, until = began_at(HOURS[5]) + 1800, began_at(HOURS[9])
    assert [hour.hour for hour in read_hours([directory], since, until)] == HOURS[5:9]


def test_ledgers_of_several_nodes_are_read_hour_by_hour(tmp_path: Path) -> None:
    for name, hour in (("a", HOURS[2]), ("b", HOURS[1]), ("b", HOURS[2])):
        LedgerWriter(tmp_path / name).append([row(hour)])
    found = [*read_hours([tmp_path / "a", tmp_path / "b", tmp_path / "a"])]
    assert [(hour.hour, hour.rows[0].requests) for hour in found] == [(HOURS[1], 1), (HOURS[2], 2)]


def test_an_hour_that_is_over_has_one_line_of_each_key(directory: Path) -> None:
    writer = LedgerWriter(directory)
    for _ in range(10):
        writer.append([row(HOURS[3])])
    before = rows(directory)
    writer.append([row(HOURS[4])])
    assert len((directory / "cost-20261126T03.jsonl").read_text().splitlines()) == 1
    assert rows(directory)[:1] == before


def test_the_oldest_hours_are_removed(directory: Path) -> None:
    writer = LedgerWriter(directory, max_hours=3)
    for hour in HOURS:
        writer.append([row(hour)])
    assert [each.hour for each in rows(directory)] == HOURS[-3:]
    small = LedgerWriter(directory, max_bytes=1)
    small.append([row("2026-11-27T00:00:00Z")])
    assert [each.hour for each in rows(directory)] == ["2026-11-27T00:00:00Z"]


def test_a_restarted_writer_goes_on_with_the_bound_of_the_hour(directory: Path) -> None:
    LedgerWriter(directory).append(row(token=f"token{number}") for number in range(1500))
    LedgerWriter(directory).append(row(token=f"more{number}") for number in range(1500))
    found = rows(directory)
    assert (len(found), sum(each.requests for each in found)) == (1001, 3000)


def test_several_writers_lose_nothing(directory: Path) -> None:
    def write() -> None:
        writer = LedgerWriter(directory)
        for hour in HOURS[:8]:
            writer.append([row(hour), row(hour, "ben")])
            writer.append([row(hour)])

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(each.requests for each in rows(directory)) == 4 * 8 * 3


def test_a_link_in_the_place_of_a_file_is_not_followed(directory: Path, tmp_path: Path) -> None:
    LedgerWriter(directory).append([row()])
    (path,) = directory.iterdir()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        LedgerWriter(directory).append([row()])
