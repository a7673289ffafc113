"""Feedback that is joined with rows of a tape, and its counts."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.feedback.figures import FeedbackFigures, Scores
from app.core.feedback.records import Feedback
from app.feedback.book import Book, Joined
from app.feedback.row_index import IDS, RowIndex, Wanted
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from tests.unit.client.tape.made import row, write

WAIT_S = 30.0


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def answered(number: int, best: int = 1, *, ingress: str = "ab", **changed: Any) -> Row:
    """Return a row whose answer is the class `best` of three."""
    data = np.eye(3, dtype="<f4")[best].tobytes()
    response = TapeResponse(1, (TapeTensor("OUT", "FP32", (1, 3), data, len(data)),), final=True)
    fields: dict[str, Any] = {
        "id": f"r{number}",
        "version": "1",
        "responses": (response,),
        "ingress": ingress,
        **changed,
    }
    return row(number, **fields)


def of(number: int, right: int) -> Scores:
    """Return scores of 0 and 1, so many of 1."""
    return Scores(number, number, right, right, number)


def settle(book: Book, index: RowIndex, clock: Clock) -> None:
    """Join what can be joined, and wait for what cannot until it is unknown."""
    for _ in range(400):
        while book.join(index):
            pass
        if not book.waiting:
            return
        clock.now += 1.0
    raise AssertionError("records wait for ever")


def test_labels_count_by_the_version_that_answered(tmp_path: Path, clock: Clock) -> None:
    rows = [answered(1, 1), answered(2, 2), answered(3, 1, version="2"), answered(4, 0, version="2")]
    write(tmp_path / "ab-1.open", rows)
    book, index = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    book.append("simple", "", [Feedback(id=f"r{number}", label=1) for number in (1, 2, 3, 4)])
    settle(book, index, clock)
    assert book.figures("simple") == FeedbackFigures({"1": of(2, 1), "2": of(2, 1)})
    assert book.of_rows(["ab-1", "ab-2", "ab-9"]) == {"ab-1": Joined(1, "1", 1), "ab-2": Joined(0, "1", 1)}


def test_the_last_record_of_a_row_counts(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path / "ab-1.open", [answered(1, 1)])
    book, index = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    for label in (2, 1, 0, 1):
        book.append("simple", "", [Feedback(row="ab-1", label=label)])
    settle(book, index, clock)
    assert book.figures("simple") == FeedbackFigures({"1": of(1, 1)}, again=3)
    assert book.of_rows(["ab-1"]) == {"ab-1": Joined(1, "1", 4)}


def test_a_record_that_waited_for_its_row_is_not_the_last_one(tmp_path: Path, clock: Clock) -> None:
    book, index = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    book.append("simple", "", [Feedback(id="r1", label=0)])
    assert book.join(index) == 1  # not there yet
    write(tmp_path / "ab-1.open", [answered(1, 1)])
    book.append("simple", "", [Feedback(id="r1", label=1)])
    settle(book, index, clock)
    assert book.figures("simple") == FeedbackFigures({"1": of(1, 1)}, again=1)


def test_what_cannot_be_scored_is_counted_by_its_reason(tmp_path: Path, clock: Clock) -> None:
    failed = answered(2, responses=(TapeResponse(1, (), "INTERNAL", "no", True),), reason="error")
    write(tmp_path / "ab-1.open", [answered(1), failed])
    book, index = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    records = [
        Feedback(id="r1", label="a text"),
        Feedback(id="r1", label=1, output="OTHER"),
        Feedback(id="r2", label=1),
        Feedback(id="r2", score=0.25),
        Feedback(id="r4", label=1),
        Feedback(row="ab-77", score=1),
    ]
    book.append("simple", "", records)
    book.append("simple", "2", [Feedback(id="r1", label=1)])  # another version has answered it
    book.append("other", "", [Feedback(id="r1", label=1)])
    settle(book, index, clock)
    unusable = {
        "the answer has no such output": 1,
        "the label is of another kind than the output": 1,
        "the request failed": 1,
    }
    found = book.figures("simple")
    assert found == FeedbackFigures({"1": Scores().with_score(0.25)}, unknown=3, unusable=unusable)
    assert found.received == 7
    assert book.figures("other") == FeedbackFigures({}, unknown=1)
    assert book.models() == ["other", "simple"]


def test_a_record_that_fails_the_scoring_holds_up_no_other(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path / "ab-1.open", [answered(1), answered(2)])
    book, index = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    book.append(
        "simple", "", [Feedback(id="r1", outputs={}), Feedback(id="r2", label=1)]
    )  # no front takes {}
    settle(book, index, clock)
    unusable = {"the server failed to score it": 1}
    assert book.figures("simple") == FeedbackFigures({"1": Scores().with_score(1.0)}, unusable=unusable)


def test_rows_stand_for_the_requests_that_are_not_on_the_tape(tmp_path: Path, clock: Clock) -> None:
    rows = [answered(number, probability=0.1) for number in (1, 2, 3)]
    write(tmp_path / "ab-1.open", [*rows, *(answered(number, reason="slow") for number in range(4, 14))])
    book, index = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    book.append("simple", "", [Feedback(id=f"r{number}", score=float(number < 4)) for number in range(1, 14)])
    settle(book, index, clock)
    scores = book.figures("simple").versions["1"]
    assert (scores.number, scores.weight) == (13, 40)
    mean = scores.mean
    assert mean is not None and mean.value == 0.75
    assert scores.effective == pytest.approx(1600 / 310)


def test_a_row_that_comes_late_is_found(tmp_path: Path, clock: Clock) -> None:
    book, index = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    book.append("simple", "", [Feedback(id="r1", score=0.5), Feedback(id="r2", score=0.5)])
    while clock.now < 1000 + WAIT_S - 3:
        book.join(index)
        clock.now += 1
    assert book.figures("simple") == FeedbackFigures({}, waiting=2)
    write(tmp_path / "ab-1.open", [answered(1)])
    settle(book, index, clock)
    assert book.figures("simple") == FeedbackFigures({"1": Scores().with_score(0.5)}, unknown=1)


def test_counts_are_exact_over_two_ingresses_and_a_restart(tmp_path: Path, clock: Clock) -> None:
    """A thousand rows of two ingresses; labels in any order, a tenth of them unknown, a tenth twice."""
    draw = random.Random(5)
    rows = [
        answered(
            number, int(draw.random() < 0.8), ingress="ab" if number % 2 else "cd", version=str(number % 3)
        )
        for number in range(1000)
    ]
    write(tmp_path / "ab-1.tape", rows[1:500:2])
    write(tmp_path / "ab-2.open", rows[501::2])
    write(tmp_path / "cd-1.open", rows[0::2])
    records = [Feedback(id=f"r{number}", label=1) for number in range(1000)]
    records += [Feedback(id=f"unknown{number}", label=1) for number in range(100)]
    records += draw.sample(records[:1000], 100)
    draw.shuffle(records)
    books = [Book(tmp_path, WAIT_S, clock), Book(tmp_path, WAIT_S, clock)]
    indexes = [RowIndex(tmp_path), RowIndex(tmp_path)]
    for begin in range(0, 1200, 50):
        books[begin // 50 % 2].append("simple", "", records[begin : begin + 50])
        if begin == 600:
            for book, index in zip(books, indexes, strict=True):
                book.join(index)
            books[0].close()
            books[0], indexes[0] = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    clock.now += 6.0  # the other one takes what the one that is gone has left
    for _ in range(10):
        for book, index in zip(books, indexes, strict=True):
            book.join(index)
    settle(books[1], indexes[1], clock)
    right = [
        sum(1 for number, each in enumerate(rows) if number % 3 == version and _best(each) == 1)
        for version in range(3)
    ]
    numbers = [334, 333, 333]
    expected = {str(v): of(numbers[v], right[v]) for v in range(3)}
    for book in books:
        assert book.figures("simple") == FeedbackFigures(expected, again=100, unknown=100)
    assert (tmp_path / f"ab-1{IDS}").exists()


def _best(each: Row) -> int:
    return int(np.argmax(each.responses[0].outputs[0].array()))


def test_an_index_in_a_file_is_used_and_renewed(tmp_path: Path) -> None:
    write(tmp_path / "ab-1.tape", [answered(number) for number in range(10)])
    wanted = [Wanted("simple", "r7"), Wanted("simple", row="ab-3"), Wanted("other", "r7")]
    for _ in range(2):
        index = RowIndex(tmp_path)
        assert index.refresh()
        assert [each and each.key for each in index.find(wanted)] == ["ab-7", "ab-3", None]
    made = write(tmp_path / "new", [answered(7)])
    made.replace(tmp_path / "ab-1.tape")  # as `nereid tape rm` does
    assert index.refresh()
    assert [each and each.key for each in index.find(wanted)] == ["ab-7", None, None]
    (tmp_path / "ab-1.tape").unlink()
    assert index.refresh()
    assert not (tmp_path / f"ab-1{IDS}").exists()
    assert index.find(wanted) == [None, None, None]


def test_of_rows_with_one_id_the_newest_is_meant(tmp_path: Path) -> None:
    write(tmp_path / "ab-1.tape", [answered(1, id="same"), answered(2, id="same", at_s=300)])
    write(tmp_path / "ab-2.open", [answered(3, id="same", at_s=200)])
    index = RowIndex(tmp_path)
    index.refresh()
    (found,) = index.find([Wanted("simple", "same")])
    assert found is not None
    assert found.number == 2


def test_slots_have_first_scores_of_rows_that_named_no_version(tmp_path: Path, clock: Clock) -> None:
    rows = [answered(1, 1, at_s=60), answered(2, 1, at_s=119), answered(3, 1, asked_version="1", at_s=70)]
    write(tmp_path / "ab-1.open", rows)
    book, index = Book(tmp_path, WAIT_S, clock), RowIndex(tmp_path)
    book.append("simple", "", [Feedback(id=f"r{number}", label=1) for number in (1, 2, 3)])
    settle(book, index, clock)
    book.append("simple", "", [Feedback(id="r1", label=2)])
    settle(book, index, clock)
    (slot,) = book.slots(0, ["simple", "other"], 0)
    assert (slot.version, slot.slot, slot.scores) == ("1", 1, of(2, 2))
    assert book.slots(slot.change, ["simple"], 0) == []
    assert book.forget(["ab-1"]) == 1
    assert book.of_rows(["ab-1", "ab-2"]) == {"ab-2": Joined(1, "1", 1)}
    book.prune(200)
    assert book.of_rows(["ab-2"]) == {}
