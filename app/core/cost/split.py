"""Divides what a version consumes among its clients. Pure; one step is about a second.

What is measured and what is answered arrive at different moments, and a long request is answered after it has
consumed. So either waits for the other: consumption without answers for a moment, or as long as requests are
in flight; answers without consumption, which may be less than the kernel's clock shows, for a few steps.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from app.core.cost.amounts import Consumption

QUIET_STEPS: Final = 2
"""Steps for which consumption without answers waits for them."""
STALE_STEPS: Final = 12
"""Steps for which answers wait for consumption."""
LONG_STEPS: Final = 60
"""Steps after which consumption of requests in flight is divided as the last one was."""
FORGET_STEPS: Final = 600
_NOBODY: Final = {"": 1.0}

Place = tuple[str, str]
"""A node, and the kind of its GPU."""


class Share(NamedTuple):
    """A part of what was consumed.

    Attributes:
        place: where.
        client: for whose requests; None for nobody's, while there were none.
        amount: what.
    """

    place: Place
    client: str | None
    amount: Consumption


class VersionSplit:
    """Divides the consumption of one version, over all nodes.

    Attributes:
        shares: of clients, at the last step that had answers.
    """

    def __init__(self) -> None:
        self.shares: Mapping[str, float] = _NOBODY
        self._waiting: dict[Place, Consumption] = {}
        self._weights = defaultdict[str, float](float)
        self._in_flight: dict[str, int] = {}
        self._quiet = self._stale = self._long = self._others = self._unused = 0

    def consumed(self, place: Place, amount: Consumption) -> None:
        """Add what was measured."""
        self._waiting[place] = self._waiting.get(place, Consumption()) + amount

    def answered(self, client: str, weight: float) -> None:
        """Add what was answered."""
        self._weights[client] += weight

    def noted(self, rows: int) -> None:
        """Add rows that were answered to somebody: where no client was answered, it was nobody named."""
        self._others += rows

    def in_flight(self, node: str, requests: int) -> None:
        """Set the number of requests in flight on a node."""
        self._in_flight[node] = requests

    @property
    def forgotten(self) -> bool:
        """Whether nothing has come for so long that it need not be kept."""
        return self._unused > FORGET_STEPS

    def step(self) -> Iterator[Share]:
        """Yield what can be divided now; the rest waits for a later step."""
        self._unused = 0 if self._waiting or self._weights else self._unused + 1
        total = sum(self._weights.values())
        works = any(each.works for each in self._waiting.values())
        if total > 0:
            self.shares = {client: weight / total for client, weight in self._weights.items() if weight}
            self._stale += 1
            if works:
                yield from self._charged(self.shares)
            elif self._stale > STALE_STEPS:
                yield from self._charged(None)
        elif works and any(self._in_flight.values()):
            self._quiet, self._long = 0, self._long + 1
            if self._long > LONG_STEPS:
                yield from self._charged(self.shares)
        elif self._waiting:
            self._quiet += 1
            if self._quiet > QUIET_STEPS or not works:
                yield from self._charged(_NOBODY if works and self._others else None)

    def end(self) -> Iterator[Share]:
        """Yield all that is left: there is no later step."""
        busy = bool(self._weights) or any(self._in_flight.values())
        yield from self.step()
        yield from self._charged(self.shares if busy else None)

    def _charged(self, shares: Mapping[str, float] | None) -> Iterator[Share]:
        taken, self._waiting = self._waiting, {}
        self._weights.clear()
        self._quiet = self._stale = self._long = self._others = 0
        for place, amount in taken.items():
            if shares is None:
                yield Share(place, None, amount)
            else:
                for client, share in shares.items():
                    yield Share(place, client, amount.part(share))
