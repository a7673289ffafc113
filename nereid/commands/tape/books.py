"""What clients have said of the rows of a tape."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from app.core.feedback.figures import FeedbackFigures
from app.feedback.book import Book, Joined
from nereid_client.tape.segments import Segment


class Books:
    """The feedback of the nodes whose segments are on a tape; a context manager.

    Args:
        segments: of the tape.

    Attributes:
        unreadable: why the feedback of a node cannot be read, by directory.
    """

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.unreadable: dict[Path, str] = {}
        self._books: list[Book] = []
        for directory in sorted({segment.path.parent for segment in segments}):
            if Book.exists(directory):
                try:
                    self._books.append(Book(directory))
                except (sqlite3.Error, OSError) as error:
                    self.unreadable[directory] = str(error)

    def __enter__(self) -> "Books":
        return self

    def __exit__(self, *_: object) -> None:
        for book in self._books:
            book.close()

    def figures(self) -> dict[str, FeedbackFigures]:
        """Return what was said of models, over all nodes."""
        found: dict[str, FeedbackFigures] = {}
        for book in self._books:
            for model in book.models():
                found[model] = found.get(model, FeedbackFigures()) + book.figures(model)
        return found

    def of_row(self, key: str) -> Joined | None:
        """Return what was said of a row; None for nothing."""
        return next((found for book in self._books for found in book.of_rows([key]).values()), None)

    def score(self, key: str) -> float | None:
        """Return the score of a row; None where nothing was said of it."""
        said = self.of_row(key)
        return None if said is None else said.score

    def forget(self, keys: Iterable[str]) -> int:
        """Forget what was said of rows; return of how many."""
        names = list(keys)
        return sum(book.forget(names) for book in self._books)
