"""Continues the texts of all requests together, a token each a step; new ones join between steps."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import torch

from backends.packaged.llm.generation import Generation

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.05
"""Time between two questions whether a request is cancelled, each a message to the server."""


class Rows(Protocol):
    """See `backends.packaged.llm.batch.Batch`."""

    joins: bool

    def add(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor: ...

    def step(self, tokens: Sequence[int]) -> torch.Tensor: ...

    def keep(self, rows: Sequence[int]) -> None: ...


class Full(Exception):
    """As many requests wait as may."""


class Engine:
    """A thread that generates."""

    def __init__(
        self,
        batch: Rows,
        max_running: int,
        max_waiting: int,
        max_prompt_tokens: int,
        observed: Callable[[int, int], None] = lambda running, waiting: None,
    ) -> None:
        """Start the thread.

        Args:
            batch: the model.
            max_running: the most texts that are continued together.
            max_waiting: the most that wait until they are.
            max_prompt_tokens: new texts join until their prompts have so many tokens, at least one a step.
            observed: called with the numbers of running and waiting texts when they change.
        """
        self._batch = batch
        self._max_running = max_running if batch.joins else 1
        self._max_waiting = max_waiting
        self._max_prompt_tokens = max_prompt_tokens
        self._observed = observed
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, generation: Generation) -> None:
        """Have a text generated.

        Raises:
            Full: as many wait as may, or the engine is closed.
        """
        with self._changed:
            if self._closed or len(self._waiting) >= self._max_waiting:
                raise Full
            self._waiting.append(generation)
            self._changed.notify()

    def close(self) -> None:
        """Finish the texts that were submitted, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (joining := self._take()) is not None:
            try:
                self._step(joining)
            except Exception as error:
                logger.exception("a step of %d texts failed", len(self._running) + len(joining))
                self._fail([*self._running, *joining], str(error))
            self._observed(len(self._running), len(self._waiting))

    def _take(self) -> list[Generation] | None:
        """Wait for something to do; return the texts that join, None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closed)
            if not (self._waiting or self._running):
                return None
            sizes = [len(generation.prompt) for generation in self._waiting]
            count = joining(sizes, self._max_running - len(self._running), self._max_prompt_tokens)
            return [self._waiting.popleft() for _ in range(count)]

    def _step(self, new: list[Generation]) -> None:
        for generation in (*self._running, *new):
            _look_for_cancellation(generation)
        self._drop_done()
        if self._running:
            self._advance(self._running, self._batch.step([each.last for each in self._running]))
        # The shortest first: prompts of similar lengths are read together.
        wanted = sorted((each for each in new if not each.done), key=lambda each: len(each.prompt))
        if wanted:
            logits = self._batch.add([each.prompt for each in wanted])
            self._running += wanted
            self._advance(wanted, logits)
        self._drop_done()

    def _advance(self, generations: Sequence[Generation], logits: torch.Tensor) -> None:
        likeliest = logits.argmax(-1).tolist()
        for row, generation in enumerate(generations):
            token = likeliest[row] if generation.choice.greedy else generation.choice(logits[row])
            generation.listener.generated(generation.advance(token, logits[row]))

    def _drop_done(self) -> None:
        if any([each.done for each in self._running]):
            self._batch.keep([row for row, each in enumerate(self._running) if not each.done])
            self._running = [each for each in self._running if not each.done]

    def _fail(self, generations: Sequence[Generation], message: str) -> None:
        self._running = []
        self._batch.keep([])
        for generation in generations:
            if not generation.done:
                generation.done = True
                generation.listener.failed(message)


def joining(prompts: Sequence[int], free: int, budget: int) -> int:
    """Return how many of the waiting prompts are read now: as many as are free, and as tokens of them fit.

    The first is read whatever its size.
    """
    count = total = 0
    while count < min(free, len(prompts)) and (count == 0 or total + prompts[count] <= budget):
        total += prompts[count]
        count += 1
    return count


def _look_for_cancellation(generation: Generation) -> None:
    now = time.monotonic()
    if now < generation.next_look:
        return
    generation.next_look = now + LOOK_S
    if generation.listener.is_cancelled():
        generation.done = True
        generation.listener.cancelled()
