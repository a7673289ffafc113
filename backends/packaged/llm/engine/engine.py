"""Continues the texts of all requests together, a token each a step, and reads new prompts beside them."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

from backends.packaged.llm.engine.choice import RequestError, Score, choose, scores
from backends.packaged.llm.engine.generation import Generation
from backends.packaged.llm.engine.pace import Pace, shares
from backends.packaged.llm.engine.prefix_cache import PrefixCache
from backends.packaged.llm.engine.reading import Embedding, Reading
from backends.packaged.llm.engine.state import State

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.05
"""Time between two questions whether a request is cancelled, each a message to the server."""
LOOK_AT_WAITING_S: Final = 1.0
"""The same of a request that waits to be read, of which there may be many."""


class Rows(Protocol):
    """See `backends.packaged.llm.engine.batch.Batch`."""

    joins: bool

    def row(self, adapter: str = "") -> Any: ...

    def free(self, row: Any) -> None: ...

    def forward(self, work: Sequence[tuple[Any, Sequence[int]]]) -> torch.Tensor: ...


Work = list[tuple[Reading, Sequence[int]]]


class Full(Exception):
    """As many requests wait as may."""


class Engine:
    """Generates texts, in a thread."""

    def __init__(
        self,
        batch: Rows,
        max_running: int,
        max_waiting: int,
        max_prompt_tokens: int,
        max_length: int,
        prefixes: PrefixCache | None = None,
        observed: Callable[[State], None] = lambda state: None,
        thread: bool = True,
    ) -> None:
        """Use a model.

        Args:
            batch: the model.
            max_running: the most texts that are continued together.
            max_waiting: the most that wait until they are.
            max_prompt_tokens: the most tokens of prompts that a step reads.
            max_length: the most tokens of a prompt and its text.
            prefixes: beginnings of prompts that were read before.
            observed: called with what it does now, after each step.
            thread: have a thread of its own; otherwise one of the caller's is to `run`.
        """
        self._batch = batch
        self._max_running = max_running if batch.joins else 1
        self._max_waiting = max_waiting
        self._pace = Pace(max_prompt_tokens)
        self._most_tokens = self._max_running * max_length
        self._prefixes = prefixes or PrefixCache(0)
        self._observed = observed
        self._changed = threading.Condition()
        self._waiting: deque[Reading] = deque()
        self._running: list[Reading] = []
        self._closed = False
        self._ended = threading.Event()
        if thread:
            threading.Thread(target=self.run, name="engine", daemon=True).start()

    def submit(self, reading: Reading) -> None:
        """Have a prompt read, and continued if it is a `Generation`.

        Raises:
            Full: as many wait as may, or the engine is closed.
        """
        with self._changed:
            if self._closed or len(self._waiting) >= self._max_waiting:
                raise Full
            self._waiting.append(reading)
            self._changed.notify()

    def close(self) -> None:
        """Finish the texts that were submitted, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._ended.wait()

    def run(self) -> None:
        """Continue texts until it is closed."""
        try:
            self._run()
        finally:
            self._ended.set()

    def _run(self) -> None:
        while (joining := self._take()) is not None:
            self._running += joining
            try:
                for reading in joining:
                    self._begin(reading)
                self._step()
            except Exception as error:
                logger.exception("a step of %d texts failed", len(self._running))
                for reading in self._running:
                    _fail(reading, error)
                    self._free(reading)
                self._running = []
            self._observed(self._state())

    def _state(self) -> State:
        tokens = sum(len(each.tokens) - len(each.unread) for each in self._running)
        counts = (self._prefixes.queries, self._prefixes.hits)
        return State(len(self._running), len(self._waiting), tokens / self._most_tokens, *counts)

    def _take(self) -> list[Reading] | None:
        """Wait for something to do; return the texts that join, None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closed)
            if not (self._waiting or self._running):
                return None
            count = min(self._max_running - len(self._running), len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _begin(self, reading: Reading) -> None:
        reading.row = self._batch.row(reading.adapter)
        if self._batch.joins:
            reading.cached = self._prefixes.fill(reading.row, reading.prompt, reading.owner)
            reading.unread = reading.prompt[reading.cached :]

    def _keep(self, reading: Reading) -> None:
        """Keep what was read of a text, for others that begin alike."""
        if self._batch.joins:
            self._prefixes.keep(reading.row, reading.tokens, reading.owner)

    def _free(self, reading: Reading) -> None:
        if reading.row is not None:
            self._batch.free(reading.row)
            reading.row = None

    def _step(self) -> None:
        for reading in self._running:
            _look_for_cancellation(reading, LOOK_S)
        self._drop_done()
        self._drop_left()
        new = [each for each in self._running if each.unread]
        continued = [each for each in self._running if isinstance(each, Generation) and not each.unread]
        parts = self._parts(new, len(continued))
        work: Work = [*((each, [each.last]) for each in continued), *parts]
        if work:
            began = time.monotonic()
            ready, logits = self._forward(work)
            self._pace.observe(
                len(continued), sum(len(tokens) for _, tokens in parts), time.monotonic() - began
            )
            self._go_on(
                [each for each in ready if not each.unread], logits[[not each.unread for each in ready]]
            )
        self._drop_done()

    def _drop_left(self) -> None:
        """Have those who wait no longer take the place of others in the queue."""
        waiting = [*self._waiting]
        for each in waiting:
            _look_for_cancellation(each, LOOK_AT_WAITING_S)
        with self._changed:
            for each in waiting:
                if each.done:
                    self._waiting.remove(each)

    def _parts(self, new: Sequence[Reading], continued: int) -> Work:
        """Return what is read of prompts in a step that continues so many texts."""
        if not new:
            return []
        if not self._batch.joins:
            return [(each, each.unread) for each in new]
        counts = shares([len(each.unread) for each in new], self._pace.budget(continued))
        return [(each, each.unread[:count]) for each, count in zip(new, counts, strict=True) if count]

    def _forward(self, work: Work, together: bool = True) -> tuple[list[Reading], torch.Tensor]:
        """Read tokens; return the texts that did not fail, and the logits of what follows each.

        A step that fails is repeated with each text alone: so only the one that makes it fail ends.
        """
        try:
            logits = self._batch.forward([(each.row, tokens) for each, tokens in work])
            logits = logits if together else logits.clone()  # the next text's may be written there
        except Exception as error:
            if len(work) > 1:
                logger.warning("a step of %d texts failed, each is tried alone: %s", len(work), error)
                found = [self._forward([each], together=False) for each in work]
                rows = [logits for _, logits in found if len(logits)]
                return [each for done, _ in found for each in done], torch.cat(rows or [torch.empty(0)])
            logger.exception("a text failed")
            _fail(work[0][0], error)
            return [], torch.empty(0)
        for each, tokens in work:
            ends = len(tokens) == len(each.unread)
            each.unread = each.unread[len(tokens) :]
            if ends:
                self._keep(each)
        return [each for each, _ in work], logits

    def _go_on(self, ready: Sequence[Reading], logits: torch.Tensor) -> None:
        """Continue texts whose prompts were read, and tell the vectors of other prompts."""
        for each in ready:
            if isinstance(each, Embedding):
                try:
                    each.finish()
                except Exception as error:
                    logger.exception("a vector failed")
                    _fail(each, error)
        rows = [row for row, each in enumerate(ready) if isinstance(each, Generation)]
        if rows:
            self._advance([each for each in ready if isinstance(each, Generation)], logits[rows])

    def _advance(self, generations: Sequence[Generation], logits: torch.Tensor) -> None:
        """Choose the next token of each text, and tell its listener; a failure ends that text alone."""
        try:
            tokens = choose(logits, [each.choice for each in generations])
            scored = _scored(generations, logits, tokens)
        except Exception as error:
            if len(generations) == 1:
                if not isinstance(error, RequestError):
                    logger.exception("a choice failed")
                _fail(generations[0], error)
            else:
                for row, each in enumerate(generations):
                    self._advance([each], logits[row : row + 1])
            return
        for row, (each, token) in enumerate(zip(generations, tokens, strict=True)):
            try:
                each.listener.generated(each.advance(token, scored.get(row)))
            except RequestError as error:
                _fail(each, error)
            except Exception as error:
                logger.exception("a piece failed")
                _fail(each, error)

    def _drop_done(self) -> None:
        for each in self._running:
            if each.done:
                self._keep(each)
                self._free(each)
        self._running = [each for each in self._running if not each.done]


def _scored(
    generations: Sequence[Generation], logits: torch.Tensor, tokens: Sequence[int]
) -> dict[int, Score]:
    """Return the scores of those rows that want them."""
    rows = [row for row, each in enumerate(generations) if each.scored is not None]
    if not rows:
        return {}
    counts = [generations[row].scored or 0 for row in rows]
    spell = generations[rows[0]].spell
    return dict(zip(rows, scores(logits[rows], [tokens[row] for row in rows], counts, spell), strict=True))


def _fail(reading: Reading, error: Exception) -> None:
    reading.done = True
    if isinstance(error, RequestError):
        reading.reader.invalid(str(error))
    else:
        reading.reader.failed(str(error))


def _look_for_cancellation(reading: Reading, every: float) -> None:
    now = time.monotonic()
    if now < reading.next_look:
        return
    reading.next_look = now + every
    if reading.reader.is_cancelled():
        reading.done = True
        reading.reader.cancelled()
