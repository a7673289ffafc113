"""What is told of versions and their counters, and which replicas are asked for it."""

import asyncio
from typing import Any

import pytest

from app.core.errors import InferError, unavailable
from app.core.observability.statistics import Duration, ReplicaReport
from app.core.rollout.split import Split
from app.ingress.service import overview
from app.ingress.service.overview import Overviews
from app.routing.table import ModelState, RoutingTable, VersionEntry


def entry(name: str, version: int = 1, state: ModelState = ModelState.READY, **more: Any) -> VersionEntry:
    return VersionEntry(name, version, state, application=f"{name}:{version}", **more)


class Served:
    """A server whose replicas report what the test says; a second passes between two looks."""

    def __init__(self, *entries: VersionEntry) -> None:
        self.table = RoutingTable(1, True, entries)
        self.listed: list[tuple[str, str, str, str]] = []
        self.counts: dict[str, int] = {}
        self.asked: list[list[str]] = []
        self.failure: InferError | None = None

    def ready(self) -> bool:
        return True

    def observed(self, entry: VersionEntry) -> tuple[str, str, int]:
        return entry.state.value, entry.reason, 1

    async def index(self) -> list[tuple[str, str, str, str]]:
        return self.listed

    async def reports(self, entries: list[VersionEntry]) -> list[tuple[VersionEntry, ReplicaReport]]:
        if self.failure:
            raise self.failure
        self.asked.append([entry.name for entry in entries])
        return [(entry, ReplicaReport(success=Duration(self.counts.get(entry.name, 0)))) for entry in entries]

    def publish(self, *entries: VersionEntry, **more: Any) -> None:
        self.table = RoutingTable(self.table.number + 1, True, entries, **more)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]

    def monotonic() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(overview, "monotonic", monotonic)
    return now


def names(found: overview.Overview) -> list[str]:
    return [row.name for row in found.versions]


def test_answer_has_what_changed_since_the_one_that_is_named() -> None:
    async def scenario() -> None:
        served = Served(entry("a"), entry("b"), entry("c", state=ModelState.UNAVAILABLE, reason="broken"))
        served.listed = [("never", "", "", ""), ("a", "1", "READY", "")]
        looks = Overviews(served)
        first = await looks.since("")
        assert sorted(names(first)) == ["a", "b", "c", "never"]
        assert {row.name: row.figures is None for row in first.versions} == {
            "a": False, "b": False, "c": True, "never": True
        }  # fmt: skip
        assert first.names is not None and len(first.names) == 4
        served.counts["b"] = 5
        second = await looks.since(first.cursor)
        assert "b" in names(second) and second.names is None
        found = next(row.figures for row in second.versions if row.name == "b")
        assert found is not None and found.ok == 5
        other = await looks.since("0badcafe.7")
        assert sorted(names(other)) == ["a", "b", "c", "never"] and other.names is not None

    asyncio.run(scenario())


def test_version_that_is_gone_is_no_longer_named() -> None:
    async def scenario() -> None:
        served = Served(entry("a"), entry("b"))
        looks = Overviews(served)
        first = await looks.since("")
        served.publish(entry("a"))
        second = await looks.since(first.cursor)
        assert second.names == [("a", "1")]

    asyncio.run(scenario())


def test_idle_versions_are_asked_in_turn_and_busy_ones_each_time(clock: list[float]) -> None:
    async def scenario() -> None:
        served = Served(*(entry(f"m{number:03}") for number in range(200)))
        looks = Overviews(served)
        await looks.since("")
        assert max(map(len, served.asked)) == 16
        clock[0] += 60
        await looks.since("")
        served.counts["m000"] = 1
        seen: set[str] = set()
        for _ in range(4):
            clock[0] += 1
            served.asked.clear()
            await looks.since("")
            asked = [name for names in served.asked for name in names]
            assert len(asked) <= 65
            seen |= set(asked)
        assert len(seen) == 200
        served.asked.clear()
        await looks.since("")
        assert "m000" in served.asked[0]

    asyncio.run(scenario())


def test_readers_at_the_same_time_are_one_look() -> None:
    async def scenario() -> None:
        served = Served(entry("a"))
        looks = Overviews(served)
        found = await asyncio.gather(*(looks.since("") for _ in range(5)))
        assert len(served.asked) == 1 and len({each.cursor for each in found}) == 1

    asyncio.run(scenario())


def test_failure_is_told_and_over_with_the_next_look() -> None:
    async def scenario() -> None:
        served = Served(entry("a"))
        looks = Overviews(served)
        served.failure = unavailable("no")
        with pytest.raises(InferError):
            await looks.since("")
        served.failure = None
        assert names(await looks.since("")) == ["a"]

    asyncio.run(scenario())


def test_versions_of_a_rollout_have_their_share() -> None:
    async def scenario() -> None:
        served = Served()
        served.publish(entry("a"), entry("a", 2), entry("b"), splits=(Split("r", "a", 1, 2, weight=250_000),))
        found = await Overviews(served).since("")
        weights = {(row.name, row.version): row.weight for row in found.versions}
        assert weights == {("a", "1"): 0.75, ("a", "2"): 0.25, ("b", "1"): None}

    asyncio.run(scenario())
