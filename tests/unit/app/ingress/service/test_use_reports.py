"""What an ingress tells the manager of the replicas of its node."""

from typing import Any, cast

import pytest

from app.core.errors import InferError, unavailable
from app.core.residency import ReplicaUse, ResidencyReport, UseReport
from app.ingress.service.use_reports import UseReports
from app.routing.table import IDLE, ModelState, VersionEntry
from tests.unit.app.routing_fakes import FakePool, FakeRouter, entry


class FakeChannel:
    suspected = ""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def control(self, verb: str, payload: Any, timeout: float) -> Any:
        assert (verb, payload) == ("use", None)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Manager:
    def __init__(self) -> None:
        self.reports: list[UseReport] = []

    async def report_use(self, uses: UseReport) -> ResidencyReport:
        self.reports.append(uses)
        if len(self.reports) == 1:
            raise unavailable("the repository manager does not answer")
        return ResidencyReport(budget=5)


async def test_replicas_of_the_node_are_asked_again_and_again() -> None:
    idle = VersionEntry("idle", 1, ModelState.READY, IDLE)
    router = FakeRouter(entry("a"), entry("b"), idle)
    local = [FakeChannel(["r1", 10, 0.5, 0]), FakeChannel(["r2", 20, 1.5, 1])]
    router.pools["a:1"] = FakePool(cast(Any, local), cast(Any, [FakeChannel(["elsewhere", 1, 1.0, 0])]))
    router.pools["b:1"] = FakePool(cast(Any, [FakeChannel(unavailable("it ends"))]), [])
    manager = Manager()
    reports = UseReports(cast(Any, router), manager.report_use)
    assert reports.figures == ResidencyReport()
    with pytest.raises(InferError):
        await reports.report()
    await reports.report()
    assert reports.figures.budget == 5 and manager.reports[0] == manager.reports[1]
    assert manager.reports[0] == [
        ("a:1", ReplicaUse("r1", 10, 0.5, 0)),
        ("a:1", ReplicaUse("r2", 20, 1.5, 1)),
    ]
