"""Keeps feedback for an ingress: in a thread of its own, a little at a time, so that no request waits."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from app.core.errors import ErrorCode, Failure, InferError, unavailable
from app.core.feedback.figures import FeedbackFigures
from app.core.feedback.records import Feedback
from app.core.feedback.reports import SlotScores
from app.feedback.book import MAX_WAITING, Book
from app.feedback.row_index import RowIndex

logger = logging.getLogger(__name__)

MAX_PENDING: Final = 100_000
"""Records that this ingress has received and not written yet."""
_COUNT_S: Final = 1.0
_IDLE_S: Final = 0.5
_REST: Final = 3.0
"""Seconds without work for each second with it: a quarter of a core at most joins records."""
_TROUBLE_S: Final = 10.0
_PRUNE_S: Final = 3600.0
_T = TypeVar("_T")


class Keeper:
    """The feedback of this node, as one of its ingresses keeps it. Runs on the event loop.

    Args:
        directory: of the node's tape.
        max_age_s: seconds after which what was said of rows is forgotten; 0 for never.
    """

    def __init__(self, directory: Path, max_age_s: float = 0.0) -> None:
        self._directory = directory
        self._max_age_s = max_age_s
        self._thread = ThreadPoolExecutor(1, "feedback")
        self._opened: Book | None = None
        self._index = RowIndex(directory)
        self._pending = 0
        self._waiting, self._counted = 0, 0.0
        self._pruned = 0.0

    async def keep(self, model: str, version: str, records: Sequence[Feedback]) -> None:
        """Write records of a model; `version`: see `Book.append`.

        Raises:
            InferError: RESOURCE_EXHAUSTED for too many at once, UNAVAILABLE if they cannot be written.
        """
        if self._pending + len(records) > MAX_PENDING:
            text = f"{self._pending} records of feedback are being written, try again in 1 s"
            raise Failure(ErrorCode.UNAVAILABLE, text, retry_after_s=1.0).error()
        self._pending += len(records)
        try:
            await self._run(lambda book: self._append(book, model, version, records))
        finally:
            self._pending -= len(records)

    def _append(self, book: Book, model: str, version: str, records: Sequence[Feedback]) -> None:
        now = time.monotonic()
        if now - self._counted >= _COUNT_S:
            self._waiting, self._counted = book.waiting, now
        if self._waiting + len(records) > MAX_WAITING:
            text = f"{MAX_WAITING} records of feedback wait to be joined with the tape, try again later"
            raise Failure(ErrorCode.UNAVAILABLE, text, retry_after_s=10.0).error()
        book.append(model, version, records)
        self._waiting += len(records)

    async def figures(self, model: str) -> FeedbackFigures:
        """Return what feedback says of a model on this node."""
        return await self._run(lambda book: book.figures(model))

    async def reading(self) -> dict[str, FeedbackFigures]:
        """Return the figures of this node by model; empty where they cannot be read."""
        if self._opened is None and not Book.exists(self._directory):
            return {}
        try:
            return await self._run(lambda book: {name: book.figures(name) for name in book.models()})
        except InferError as error:
            logger.warning("%s", error.message)
            return {}

    async def slots(self, after: int, models: Sequence[str], since: int) -> list[SlotScores]:
        """Return what changed for the judge, see `Book.slots`."""
        return await self._run(lambda book: book.slots(after, models, since))

    async def run(self) -> None:
        """Join records with rows for ever."""
        while True:
            begun = time.monotonic()
            try:
                found = await self._in_thread(self._step)
            except (OSError, sqlite3.Error) as error:
                logger.warning("joining feedback with the tape in %s: %s", self._directory, error)
                await asyncio.sleep(_TROUBLE_S)
                continue
            except Exception:
                logger.exception("joining feedback with the tape")
                await asyncio.sleep(_TROUBLE_S)
                continue
            spent = time.monotonic() - begun
            await asyncio.sleep(max(spent * _REST, 0.0 if found else _IDLE_S))

    def _step(self) -> int:
        """Join some records; return how many. Nothing is opened before there is a first one."""
        if self._opened is None and not Book.exists(self._directory):
            return 0
        book = self._book()
        now = time.monotonic()
        if self._max_age_s and now - self._pruned > _PRUNE_S:
            self._pruned = now
            book.prune(int(time.time() - self._max_age_s))
        return book.join(self._index)

    def _book(self) -> Book:
        if self._opened is None:
            self._opened = Book(self._directory)
        return self._opened

    async def _run(self, call: Callable[[Book], _T]) -> _T:
        try:
            return await self._in_thread(lambda: call(self._book()))
        except (OSError, sqlite3.Error) as error:
            raise unavailable(f"feedback cannot be kept in {self._directory}: {error}") from None

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def close(self) -> None:
        """Close the database once what was begun is done."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
