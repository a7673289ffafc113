"""What is known of the answers on a node's tape: records of feedback, joined with rows, and their sums.

A SQLite database in the tape's directory, which all ingresses of the node write: each step is one
transaction, so that the sums are exact whoever takes it, and whenever a process is killed. A record waits in
`inbox` until its row is found; then it counts by the row's version. Of several for a row the last one counts.
"""

import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from app.core.encoding import to_json, to_msgpack
from app.core.feedback.figures import FeedbackFigures, Scores
from app.core.feedback.records import Feedback
from app.core.feedback.reports import SlotScores
from app.feedback.row_index import RowIndex, Wanted
from app.feedback.scoring import Unusable, score_of
from nereid_client.tape.rows import Row

logger = logging.getLogger(__name__)

FILE: Final = "feedback.sqlite"
SLOT_S: Final = 60
"""Seconds of rows that are compared with one another, see `deployments/rollout/judging/scores.py`."""
MAX_WAITING: Final = 1_000_000
"""Records whose rows are not found yet."""
_BATCH: Final = 500
"""Records of one transaction: others wait for it."""
_PAUSES_S: Final = (1.0, 3.0, 10.0)
"""After which a record's row is looked for again: a row is written a moment after its answer."""
_LATE_S: Final = 5.0
"""After which another ingress looks for the row: that which got the record may have ended."""
_UNKNOWN: Final = "unknown"
_UNUSABLE: Final = "unusable:"
_FAULT: Final = "the server failed to score it"
_SLOTS_S: Final = 14 * 86400
_BUSY_S: Final = 10.0
_MAX_LABEL: Final = 200

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS inbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, received REAL, due REAL,
    tries INTEGER, owner TEXT, model TEXT, version TEXT, record BLOB);
CREATE INDEX IF NOT EXISTS due ON inbox (due, seq);
CREATE TABLE IF NOT EXISTS joined (row TEXT PRIMARY KEY, model TEXT, version TEXT, score REAL, label TEXT,
    records INTEGER, seq INTEGER, arrived INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS arrived ON joined (arrived);
CREATE TABLE IF NOT EXISTS sums (model TEXT, version TEXT, number INTEGER, weight REAL, total REAL,
    squares REAL, weights REAL, PRIMARY KEY (model, version)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS others (model TEXT, what TEXT, number INTEGER,
    PRIMARY KEY (model, what)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slots (model TEXT, version TEXT, slot INTEGER, number INTEGER, weight REAL,
    total REAL, squares REAL, weights REAL, change INTEGER, PRIMARY KEY (model, version, slot)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS change ON slots (change);
"""
_SUMS: Final = ", ".join(Scores.__struct_fields__)
_ADDED: Final = ", ".join(f"{name} = {name} + excluded.{name}" for name in Scores.__struct_fields__)


class Joined(NamedTuple):
    """What is known of a row: its score by the last record, what that said, and how many there were."""

    score: float
    label: str
    records: int


class _Entry(NamedTuple):
    """A record that waits for its row."""

    seq: int
    received: float
    tries: int
    model: str
    version: str
    record: Feedback


class Book:
    """The feedback of a node. Of one thread; other processes may have the same one.

    Args:
        directory: of the node's tape; made if it is missing.
        wait_s: seconds in which a row must appear; then the record's request is unknown.
        clock: Unix seconds.

    Raises:
        sqlite3.Error: it cannot be opened, or (every method) read or written.
    """

    def __init__(self, directory: Path, wait_s: float = 30.0, clock: Callable[[], float] = time.time) -> None:
        self._wait_s, self._clock = wait_s, clock
        self._owner = uuid.uuid4().hex
        (directory / FILE).touch(0o600)
        self._connection = sqlite3.connect(
            directory / FILE, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_SCHEMA)

    @staticmethod
    def exists(directory: Path) -> bool:
        """Return whether a directory has one."""
        return (directory / FILE).exists()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def append(self, model: str, version: str, records: Sequence[Feedback]) -> None:
        """Keep records of a model, of a `version` alone unless that is ""; all of them, or none."""
        now, encode = self._clock(), to_msgpack
        same = now, now, 0, self._owner, model, version
        with _Transaction(self._connection):
            self._connection.executemany(
                "INSERT INTO inbox (received, due, tries, owner, model, version, record) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(*same, encode(record)) for record in records],
            )

    @property
    def waiting(self) -> int:
        """Records that wait for their rows."""
        found: int = self._connection.execute("SELECT count(*) FROM inbox").fetchone()[0]
        return found

    def join(self, index: RowIndex) -> int:
        """Join the records that are due with their rows, at most `_BATCH`; return how many were looked at."""
        now = self._clock()
        if not self._due(now, 1):
            return 0
        complete = index.refresh()
        due = self._due(now, _BATCH)
        rows = index.find([Wanted(each.model, each.record.id, each.record.row) for each in due])
        settled = [self._settled(*each, now, complete) for each in zip(due, rows, strict=True)]
        with _Transaction(self._connection):
            for entry, row, found in zip(due, rows, settled, strict=True):
                if found is None:
                    self._wait_on(entry, now)
                elif self._taken(entry):
                    if isinstance(found, str) or row is None:
                        self._count(entry.model, str(found))
                    else:
                        self._score(entry, row, found)
        return len(due)

    def _due(self, now: float, most: int) -> list[_Entry]:
        """Return records whose rows are to be looked for; others' once these have been late with them."""
        found = self._connection.execute(
            "SELECT seq, received, tries, model, version, record FROM inbox "
            "WHERE due <= ? AND (owner = ? OR due <= ?) ORDER BY due, seq LIMIT ?",
            (now, self._owner, now - _LATE_S, most),
        )
        return [_entry(each) for each in found]

    def _settled(self, entry: _Entry, row: Row | None, now: float, complete: bool) -> float | str | None:
        """Return the score of a record's row, or what else the record is; None to wait for the row."""
        if row is None:
            over = complete and now - entry.received >= self._wait_s
            return _UNKNOWN if over else None
        if entry.version not in ("", row.version):
            return _UNKNOWN
        try:
            return score_of(row, entry.record)
        except Unusable as error:
            return f"{_UNUSABLE}{error}"
        except Exception:  # one record must not hold up the others, again and again
            logger.exception("scoring feedback on row '%s' of the model '%s'", row.key, entry.model)
            return f"{_UNUSABLE}{_FAULT}"

    def _wait_on(self, entry: _Entry, now: float) -> None:
        due = now + _PAUSES_S[min(entry.tries, len(_PAUSES_S) - 1)]
        due = min(due, max(entry.received + self._wait_s, now + _PAUSES_S[0]))
        values = due, entry.seq
        self._connection.execute("UPDATE inbox SET due = ?, tries = tries + 1 WHERE seq = ?", values)

    def _taken(self, entry: _Entry) -> bool:
        """Remove a record from those that wait; return whether it was still there."""
        gone = self._connection.execute("DELETE FROM inbox WHERE seq = ?", (entry.seq,))
        return gone.rowcount == 1

    def _score(self, entry: _Entry, row: Row, score: float) -> None:
        label, run = _said(entry.record), self._connection.execute
        before = run("SELECT score, seq FROM joined WHERE row = ?", (row.key,)).fetchone()
        if before is not None:
            self._again(entry, row, (score, label), before)
            return
        values = row.key, row.model, row.version, score, label, entry.seq, row.arrived_ns // 10**9
        run("INSERT INTO joined VALUES (?, ?, ?, ?, ?, 1, ?, ?)", values)
        scores = Scores().with_score(score, _weight(row))
        self._add(row, scores)
        if not row.asked_version:
            self._add_to_slot(row, scores)

    def _again(self, entry: _Entry, row: Row, said: tuple[float, str], before: tuple[float, int]) -> None:
        """Count a further record of a row; what was said last counts."""
        self._count(row.model, "again")
        run = self._connection.execute
        run("UPDATE joined SET records = records + 1 WHERE row = ?", (row.key,))
        if entry.seq > before[1]:
            run("UPDATE joined SET score = ?, label = ?, seq = ? WHERE row = ?", (*said, entry.seq, row.key))
            self._add(row, Scores().corrected(before[0], said[0], _weight(row)))

    def _add(self, row: Row, scores: Scores) -> None:
        self._connection.execute(
            f"INSERT INTO sums VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET {_ADDED}",
            (row.model, row.version, *msgspec.structs.astuple(scores)),
        )

    def _add_to_slot(self, row: Row, scores: Scores) -> None:
        slot = row.arrived_ns // 10**9 // SLOT_S
        self._connection.execute(
            "INSERT INTO slots VALUES (?, ?, ?, ?, ?, ?, ?, ?, "
            "(SELECT coalesce(max(change), 0) + 1 FROM slots)) "
            f"ON CONFLICT DO UPDATE SET {_ADDED}, change = excluded.change",
            (row.model, row.version, slot, *msgspec.structs.astuple(scores)),
        )

    def _count(self, model: str, what: str) -> None:
        self._connection.execute(
            "INSERT INTO others VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET number = number + 1",
            (model, what),
        )

    def models(self) -> list[str]:
        """Return the models that have feedback."""
        found = self._connection.execute(
            "SELECT model FROM sums UNION SELECT model FROM others UNION SELECT model FROM inbox ORDER BY 1"
        )
        return [each[0] for each in found]

    def figures(self, model: str) -> FeedbackFigures:
        """Return what feedback says of a model, and what became of its records."""
        with _Transaction(self._connection, read=True):
            run = self._connection.execute
            sums = run(f"SELECT version, {_SUMS} FROM sums WHERE model = ?", (model,)).fetchall()
            others = dict(run("SELECT what, number FROM others WHERE model = ?", (model,)).fetchall())
            waiting = run("SELECT count(*) FROM inbox WHERE model = ?", (model,)).fetchone()[0]
        named = {what.partition(":")[2]: others[what] for what in sorted(others) if ":" in what}
        counted = {name: others.get(name, 0) for name in ("again", "unknown")}
        versions = {each[0]: Scores(*each[1:]) for each in sorted(sums, key=lambda each: _number(each[0]))}
        return FeedbackFigures(versions, unusable=named, waiting=waiting, **counted)

    def slots(self, after: int, models: Iterable[str], since: int) -> list[SlotScores]:
        """Return the slots of models, from slot `since` on, that changed after a change's number."""
        found: list[SlotScores] = []
        for model in models:
            rows = self._connection.execute(
                f"SELECT version, slot, change, {_SUMS} FROM slots "
                "WHERE model = ? AND slot >= ? AND change > ? ORDER BY change",
                (model, since, after),
            )
            found += [SlotScores(model, each[0], each[1], Scores(*each[3:]), each[2]) for each in rows]
        return found

    def of_rows(self, keys: Iterable[str]) -> dict[str, Joined]:
        """Return what is known of rows, by their keys."""
        run, found = self._connection.execute, {}
        for key in keys:
            one = run("SELECT score, label, records FROM joined WHERE row = ?", (key,)).fetchone()
            if one is not None:
                found[key] = Joined(*one)
        return found

    def forget(self, keys: Iterable[str]) -> int:
        """Forget what was said of rows, by their keys; return of how many. The sums stay."""
        with _Transaction(self._connection):
            cursor = self._connection.executemany(
                "DELETE FROM joined WHERE row = ?", ((key,) for key in keys)
            )
            return cursor.rowcount

    def prune(self, oldest: int) -> None:
        """Forget what was said of rows before a moment, in Unix seconds, and slots that no rollout needs."""
        with _Transaction(self._connection):
            self._connection.execute("DELETE FROM joined WHERE arrived < ?", (oldest,))
            slot = int(self._clock() - _SLOTS_S) // SLOT_S
            self._connection.execute("DELETE FROM slots WHERE slot < ?", (slot,))


class _Transaction:
    """A transaction: all of it, or nothing."""

    def __init__(self, connection: sqlite3.Connection, read: bool = False) -> None:
        self._connection, self._read = connection, read

    def __enter__(self) -> None:
        self._connection.execute("BEGIN" if self._read else "BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def _weight(row: Row) -> float:
    """Return for how many requests a row stands: the slow ones are all on the tape, others by chance."""
    return 1.0 / row.probability if row.probability > 0 else 1.0


def _said(record: Feedback) -> str:
    """Return what a record said, as `nereid tape show` prints it."""
    if record.score is not None:
        return ""
    said = record.label if record.outputs is None else record.outputs
    return to_json(said).decode()[:_MAX_LABEL]


def _number(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdecimal() else (0, version)


def _entry(row: tuple[Any, ...]) -> _Entry:
    seq, received, tries, model, version, record = row
    decoded = msgspec.msgpack.decode(record, type=Feedback)
    return _Entry(seq, received, tries, model, version, decoded)
