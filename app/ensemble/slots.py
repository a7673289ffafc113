"""The limit of an ensemble's steps, `max_inflight_requests`, which all of its requests share."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable


class StepSlots:
    """Slots of each step; who finds none waits in order, and is called when it may try again.

    Like Triton since 26.04, the limit is one for all requests of an ensemble, not for each.
    """

    def __init__(self, limit: int) -> None:
        """`limit` are the calls of a step that may be in flight in this process; 0 is no limit."""
        self._limit = limit
        self._taken: Counter[int] = Counter()
        self._waiting: defaultdict[int, dict[Hashable, Callable[[], None]]] = defaultdict(dict)

    def take(self, step: int, call: Hashable, resume: Callable[[], None]) -> bool:
        """Take a slot for a call; without a free one, have `resume` called in its turn and return False."""
        if self._limit and self._taken[step] >= self._limit:
            self._waiting[step].setdefault(call, resume)
            return False
        self._taken[step] += 1
        return True

    def give_back(self, step: int) -> None:
        """Give a slot back; those that wait longest for one are called."""
        self._taken[step] -= 1
        waiting = self._waiting[step]
        while waiting and self._taken[step] < self._limit:
            waiting.pop(next(iter(waiting)))()

    def forget(self, step: int, call: Hashable) -> None:
        """Let a call wait no longer."""
        self._waiting[step].pop(call, None)
