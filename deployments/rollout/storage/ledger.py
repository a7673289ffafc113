"""What each model has served: when which version took over, by whom and why; it outlives rollouts."""

from collections import Counter
from typing import Final

import msgspec

from app.core.encoding import to_json
from app.core.rollout.history import Evidence, ServedChange, ServedEvent
from app.core.rollout.status import RolloutState, RolloutStatus
from deployments.rollout.states.record import NEREID
from deployments.rollout.storage.documents import Documents, Storage

MAX_EVENTS: Final = 200
"""Events of a model in its file; the oldest go first."""
MAX_STORED: Final = 20
"""Events of a model in the cluster's memory."""
_CHANGES: Final[dict[RolloutState, ServedChange]] = {
    RolloutState.PROMOTED: "promoted",
    RolloutState.DONE: "done",
    RolloutState.FAILED: "failed",
    RolloutState.ABORTED: "aborted",
}


class Served(msgspec.Struct, frozen=True):
    """The history of one model."""

    name: str
    events: tuple[ServedEvent, ...] = ()

    @property
    def changed_at(self) -> float:
        """When it last changed, Unix seconds."""
        return self.events[-1].at if self.events else 0.0


class Ledger:
    """The histories of all models.

    Args:
        storage: where they are kept.

    Attributes:
        failures: see `RoutingTable.rollout_failures`.
    """

    def __init__(self, storage: Storage) -> None:
        self._documents = Documents(storage, "served", Served)
        self._served: dict[str, Served] = {}
        self.failures: Counter[str] = Counter()

    async def recover(self) -> None:
        """Read what was kept."""
        self._served = await self._documents.read()

    def events(self, name: str) -> tuple[ServedEvent, ...]:
        """Return the history of a model, newest last."""
        found = self._served.get(name)
        return found.events if found is not None else ()

    async def note(self, name: str, event: ServedEvent) -> None:
        """Add an event."""
        events = (*self.events(name), event)[-MAX_EVENTS:]
        self._served[name] = Served(name, events)
        small = to_json(Served(name, events[-MAX_STORED:]))
        await self._documents.write(name, small, to_json(self._served[name]))

    async def load(self, name: str, version: int, at: float, why: str, who: str) -> None:
        """Note that a load has changed which version answers requests without one, or was that of none."""
        events = self.events(name)
        if (events[-1].version if events else 0) != version:
            what: ServedChange = "loaded" if version else "unloaded"
            await self.note(name, ServedEvent(at, what, version, who or NEREID, why))

    async def step(self, name: str, status: RolloutStatus) -> None:
        """Note a change of a rollout, if it is one that counts."""
        event, count = status.history[-1], len(status.history)
        self.failures.update([name] if event.state is RolloutState.FAILED else [])
        begins = event.state is RolloutState.LOADING and count == 1
        what: ServedChange | None = "started" if begins else _CHANGES.get(event.state)
        if what is None:
            return
        taken_over = event.state in (RolloutState.PROMOTED, RolloutState.DONE)
        version, other = status.stable, status.candidate
        if taken_over:
            version, other = other, version
        who = event.who
        if not taken_over and count > 1:  # who decided to go back, rather than who has carried it out
            who = next((e.who for e in status.history[::-1] if e.state is RolloutState.ROLLING_BACK), who)
        found = ServedEvent(event.at, what, version, who, event.why, other, evidence(status))
        await self.note(name, found)

    def before(self, name: str) -> list[int]:
        """Return the versions that have answered requests without a version, the last one first."""
        return [*dict.fromkeys(event.version for event in reversed(self.events(name)) if event.version)]


def evidence(status: RolloutStatus) -> Evidence | None:
    """Return what a rollout has counted, and the judge's last evidence; None for nothing."""
    stable, candidate, mirror = status.total.stable, status.total.candidate, status.total.mirror
    rules = {rule: round(value, 3) for rule, value in status.verdict.evidence.items()}
    mirrored = mirror.compared + mirror.failed
    found = Evidence(stable.judged, stable.failed, candidate.judged, candidate.failed, mirrored, rules)
    return None if found == Evidence() else found
