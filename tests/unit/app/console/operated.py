"""A service whose models are rolled out, drift and are recorded, with texts that would be markup."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from app.core.cost.ledger import Hour
from app.core.cost.prices import Prices
from app.core.cost.report import Report, report
from app.core.cost.rows import LedgerRow
from app.core.drift.building import side
from app.core.drift.distances import Distances
from app.core.drift.spec import DriftSpec
from app.core.drift.status import DriftStatus, FeatureStatus
from app.core.errors import not_found
from app.core.observability.durations import FINE_S
from app.core.rollout.history import RolloutHistory
from app.core.rollout.outcomes import MirrorOutcomes
from app.core.rollout.status import RolloutChange, RolloutState, RolloutStatus, Verdict
from app.core.rollout.tape import WorstRow
from app.core.rollout.tape_evidence import TapeEvidence
from app.ingress.service.overview import Overview, VersionRow
from app.tape.browsing import TapeBrowser
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.rollout_fakes import rollout, rollout_history

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


class Operated(FakeService):
    """Answers what the pages of operators ask for.

    Args:
        tape: a directory of segments.

    Attributes:
        changed: changes of rollouts that were asked for.
        status: of the rollout; None for none.
    """

    def __init__(self, tape: Path | None = None) -> None:
        super().__init__()
        self._tape = tape
        self.changed: list[tuple[str, RolloutChange, str]] = []
        found = rollout()
        reasons = {f"the model raised {HOSTILE}": 7, "no memory": 3}
        candidate = msgspec.structs.replace(found.total.candidate, reasons=reasons)
        worst = (WorstRow("19ab-7", HOSTILE, 30.0, f"scores: values, {HOSTILE}"),)
        self.status: RolloutStatus | None = msgspec.structs.replace(
            found,
            reason=f"the step of 5 % passed {HOSTILE}",
            total=msgspec.structs.replace(found.total, candidate=candidate),
            verdict=Verdict((), {"errors": 2.5, "latency": 1400.0}, 0.031, "", ""),
            tape=TapeEvidence(mirror=MirrorOutcomes(compared=900, differing=1), worst=worst),
        )

    async def overview(self, cursor: str) -> Overview:
        rows = [VersionRow("identity", version, "READY", "", "python") for version in ("1", "2")]
        rows.append(VersionRow(HOSTILE, "1", "UNAVAILABLE", HOSTILE, "python"))
        return Overview("fake.1", 1.0, True, FINE_S, rows, [(row.name, row.version) for row in rows])

    async def rollout(self, name: str) -> RolloutStatus:
        if self.status is None:
            raise not_found(f"model '{name}' has had no rollout")
        return self.status

    async def rollout_history(self, name: str) -> RolloutHistory:
        return rollout_history()

    async def change_rollout(self, name: str, change: RolloutChange, who: str = "") -> RolloutStatus:
        self.changed.append((name, change, who))
        found = self.status or rollout()
        states = {"abort": RolloutState.ABORTED, "start": RolloutState.LOADING, "pause": RolloutState.PAUSED}
        self.status = msgspec.structs.replace(found, state=states.get(change.action, found.state))
        return self.status

    async def drift(self, name: str, version: str = "") -> DriftStatus:
        if name != "identity":
            raise not_found(f"model '{name}' has no drift.json")
        rng = np.random.default_rng(0)
        columns: dict[str, Any] = {"x": [rng.normal(size=(10_000, 2))]}
        inputs, _ = side(columns, 1.7e9, "train.npz")
        features = []
        for place, feature in enumerate(inputs.tensors[0].features):
            counts = feature.counts if place else (*feature.counts[1:], feature.counts[0])
            distances = Distances(0.4 * (1 - place), 0.1, 1.2, 0.3)
            evidence = 0.1 if place else 5e6
            named = feature if place else msgspec.structs.replace(feature, name=HOSTILE)
            features.append(FeatureStatus(named, "x", False, counts, evidence, not place, distances))
        quality = {"x": {"nan": 12}}
        return DriftStatus(
            name, 1, DriftSpec(), 1.7e9, HOSTILE, 10_000, 3000, 3000, tuple(features), 1.7e9, 0.9, quality
        )

    async def cost(
        self, since: float, by: Sequence[str], permits: Callable[[str], bool] | None = None
    ) -> Report:
        hours = []
        for hour in ("2026-11-26T20:00:00Z", "2026-11-26T22:00:00Z"):
            rows = [
                LedgerRow(hour, "usage", "n", "identity", "1", HOSTILE, cpu_seconds=1800.0, requests=9000),
                LedgerRow(hour, "usage", "n", "other", "1", "web", cpu_seconds=360.0, requests=40),
                LedgerRow(hour, "idle", "n", "identity", "1", cpu_seconds=72.0, memory_gib_seconds=900.0),
                LedgerRow(hour, "overhead", "n", "ingress", cpu_seconds=90.0),
                LedgerRow(hour, "measured", "n", cpu_seconds=2300.0, node_core_seconds=7200.0),
            ]
            hours.append(Hour(hour, rows, 0))
        return report(hours, by, Prices("EUR", cpu_core_hour=0.04))

    def tape(self) -> TapeBrowser:
        return super().tape() if self._tape is None else TapeBrowser(self._tape)
