"""Ensembles whose steps name a model that is in a rollout."""

from typing import Any, cast

import msgspec
import pytest

from app.core.inference import Call, Sink
from app.core.rollout.split import WHOLE, Split
from app.core.tensors import InferRequest
from app.rollout.traffic import RolloutTraffic, SplitTarget
from app.routing.table import RoutingTable, VersionEntry
from tests.unit.ensembles import Models, ensemble, entry, model, step, tensor, turn


class SplitModels(Models):
    """Two versions of model `a` at half of the requests each; `versions` are those that were asked."""

    def __init__(self, **ensembles: str) -> None:
        super().__init__(**ensembles)
        both = tuple(entry("a", model(), version) for version in (1, 2))
        split = Split("r", "a", stable=1, candidate=2, weight=WHOLE // 2)
        self.table = RoutingTable(2, True, (*self.table.entries, *both), splits=(split,))
        self.traffic = RolloutTraffic(cast(Any, self))
        self.traffic.follow(self.table)
        self.versions: list[int] = []

    def losses(self, found: VersionEntry) -> int:
        return 0

    def submit(self, found: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        if found.split is not None:
            return SplitTarget(found, self, self.traffic).submit(request, sink)
        if found.ensemble:
            return super().submit(found, request, sink)
        self.versions.append(found.version)
        return super().submit(msgspec.structs.replace(found, split=None), request, sink)

    async def run(self, number: int, **fields: Any) -> list[int]:
        """Send requests of two steps each; return the versions that were asked."""
        self.versions.clear()
        for _ in range(number):
            self.infer(tensor(), **fields)
            for _ in range(2):
                self.take("a").answer(tensor("y"))
                await turn()
            assert self.responses.pop().failure is None
        return list(self.versions)


def twice(first: int = -1, second: int = -1) -> str:
    return ensemble(
        step({"x": "IN"}, {"y": "MID"}, "a", first), step({"x": "MID"}, {"y": "OUT"}, "a", second)
    )


async def test_the_steps_of_a_request_get_one_version() -> None:
    models = SplitModels(e=twice())
    found = [tuple(await models.run(1, id=f"request {number}")) for number in range(40)]
    assert set(found) == {(1, 1), (2, 2)}


@pytest.mark.parametrize("version", [1, 2])
async def test_a_step_that_names_a_version_is_never_split(version: int) -> None:
    models = SplitModels(e=twice(version, version))
    assert await models.run(10) == [version] * 20
