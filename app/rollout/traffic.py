"""The requests of this process to models in a rollout, each sent to one of two versions."""

from dataclasses import dataclass
from typing import Final

from app.core.errors import InferError
from app.core.identifiers import name_of
from app.core.inference import Call, Sink
from app.core.rollout.outcomes import Outcomes, StepOutcomes
from app.core.rollout.split import Split
from app.core.rollout.status import RolloutState
from app.core.tensors import InferRequest
from app.rollout.flights import CallLater, Flights
from app.rollout.live_split import LiveSplit, Versions
from app.rollout.mirror import Mirror
from app.rollout.tally import StepTally
from app.rollout.tape import TapeRun
from app.routing.refusals import not_ready
from app.routing.table import ModelState, RoutingTable, VersionEntry
from app.routing.targets import Routes

MAX_TALLIES: Final = 1024
"""Steps whose outcomes are kept until they are reported; those of the oldest are dropped above."""


class RolloutTraffic:
    """Splits the requests of a router by its newest table. Runs on the data-plane loop."""

    def __init__(
        self, router: Versions, mirror: Mirror | None = None, call_later: CallLater | None = None
    ) -> None:
        """Without `mirror` no requests are mirrored; `call_later` is the loop's by default."""
        self._call_later = call_later
        self._flights: dict[str, tuple[Split, Flights]] = {}
        self._router = router
        self._mirror = mirror
        self._live: dict[str, LiveSplit] = {}
        self._runs: dict[tuple[str, int], TapeRun] = {}
        self._tallies: dict[tuple[str, int], StepTally] = {}
        self._taken: dict[str, Outcomes] = {}

    def live(self, name: str) -> LiveSplit | None:
        """Return the step of a model's rollout, if one is on."""
        return self._live.get(name)

    def follow(self, table: RoutingTable) -> None:
        """Split by this table from now on; called once the router has it."""
        found = ((split, _resolved(table, split.name)) for split in table.splits)
        # Without a READY stable version there is nothing to split.
        self._live = {split.name: self._followed(table, split) for split, entry in found if entry.split}
        self._free(table)
        self._follow_tape()

    def take(self) -> list[StepOutcomes]:
        """Return what was counted since the last time, and count from zero; called once a second."""
        for live in self._live.values():
            live.look()
        taken = [step for tally in self._tallies.values() if (step := tally.take()) is not None]
        taken += [step for run in self._runs.values() for step in run.take()]
        for step in taken:
            self._taken[step.rollout] = self._taken.get(step.rollout, Outcomes()) + step.outcomes
        on = {live.split.rollout for live in self._live.values()}
        self._taken = {rollout: outcomes for rollout, outcomes in self._taken.items() if rollout in on}
        return taken

    def arrived(self, steps: list[StepOutcomes]) -> None:
        """Note that the manager has counted what `take` returned."""
        for step in steps:
            run = self._runs.get((step.rollout, step.step))
            if run is not None and step.part is not None:
                run.arrived(step.part)

    def counted(self) -> list[tuple[Split, Outcomes]]:
        """Return the rollouts that are on, each with all that this process has counted of it."""
        return [(live.split, self._counted(live.split.rollout)) for live in self._live.values()]

    def _counted(self, rollout: str) -> Outcomes:
        steps = (tally.outcomes for tally in self._tallies.values() if tally.rollout == rollout)
        return sum(steps, self._taken.get(rollout, Outcomes()))

    def _followed(self, table: RoutingTable, split: Split) -> LiveSplit:
        live = self._live.get(split.name)
        if live is None or (live.split.rollout, live.split.step) != (split.rollout, split.step):
            _, flights = self._flights.get(split.rollout) or (split, Flights(self._call_later))
            live = LiveSplit(self._router, self._tally(split.rollout, split.step), flights, self._mirror)
        live.flights.hang_seconds = split.hang_seconds
        self._flights[split.rollout] = split, live.flights
        versions = table.by_name[split.name]
        candidate = versions.get(split.candidate)
        if candidate is not None and candidate.state is not ModelState.READY:
            candidate = None
        live.follow(split, versions[split.stable], candidate)
        return live

    def _follow_tape(self) -> None:
        """Repeat the recorded requests of the rollouts that want it."""
        mirror = self._mirror
        wanted = {
            (live.split.rollout, live.split.step): live
            for live in self._live.values()
            if mirror is not None and live.split.tape is not None
        }
        for key in self._runs.keys() - wanted.keys():
            self._runs.pop(key).stop()
        for key, live in wanted.items():
            if mirror is not None and key not in self._runs:
                self._runs[key] = TapeRun(live, mirror.tape)
                self._runs[key].start()

    def _free(self, table: RoutingTable) -> None:
        """Free the requests at candidates that are withdrawn; watch none at those that have taken over."""
        on = {split.rollout: split for split in table.splits}
        for rollout, (last, flights) in list(self._flights.items()):
            split, ready = on.get(rollout), table.ready_versions(last.name)
            over = split is None and last.candidate not in ready
            if last.stable in ready and (over or (split and split.state == RolloutState.ROLLING_BACK)):
                name = f"model '{name_of(last.name)}' version {last.candidate}"
                flights.withdraw(f"{name} was withdrawn: its rollout has failed or was aborted")
            elif split is None:
                flights.release()
            if split is None:
                del self._flights[rollout]

    def _tally(self, rollout: str, step: int) -> StepTally:
        tally = self._tallies.setdefault((rollout, step), StepTally(rollout, step))
        tally.unavailable, tally.absent = "", False
        if len(self._tallies) > MAX_TALLIES:
            del self._tallies[next(iter(self._tallies))]
        return tally


def _resolved(table: RoutingTable, name: str) -> VersionEntry:
    """Return what requests without a version resolve to; an entry without a split if they are refused."""
    try:
        return table.resolve(name)
    except InferError:
        return VersionEntry(name, 0, ModelState.UNAVAILABLE)


@dataclass(slots=True, eq=False)
class SplitTarget:
    """A model in a rollout, whose versions both may answer; `entry` is the stable one, with the split."""

    entry: VersionEntry
    routes: Routes
    traffic: RolloutTraffic

    @property
    def available(self) -> bool:
        """As `Target.available`: whether the stable version is."""
        live = self.traffic.live(self.entry.name)
        return live is not None and live.stable.route.available

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        live = self.traffic.live(self.entry.name)
        if live is None:
            return self.routes.otherwise(self.entry, request, sink)
        if live.stable.decoupled != self.entry.decoupled:  # replaced since: the caller is unprepared
            raise not_ready(self.entry.model, self.entry.version)
        return live.start(request, sink)
