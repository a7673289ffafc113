"""POLL mode: which changes are followed, and the manager that follows them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.routing.table import ModelState
from deployments.drift import monitor
from deployments.manager import polling
from deployments.manager.manager import RepositoryManager
from deployments.manager.polling import Poller
from tests.unit.deployments.manager.manager_bench import Bench, reason, states
from tests.unit.deployments.model_directories import CONFIG, add
from tests.waiting import until


def test_unchanged_model_is_not_reported() -> None:
    poller = Poller({"m": "1"})
    assert poller.observe({"m": "1"}) == []
    assert poller.observe({"m": "1"}) == []


def test_change_is_reported_once_it_is_stable() -> None:
    poller = Poller({"m": "1", "n": "1"})
    assert poller.observe({"m": "2", "n": "1"}) == []
    assert poller.observe({"m": "3", "n": "1"}) == [], "still being written"
    assert poller.observe({"m": "3", "n": "1"}) == ["m"]
    assert poller.observe({"m": "3", "n": "1"}) == []


def test_added_and_removed_models_are_reported() -> None:
    poller = Poller({"old": "1"})
    assert poller.observe({"new": "1"}) == []
    assert poller.observe({"new": "1"}) == ["new", "old"]
    assert poller.observe({"new": "1"}) == []


def test_model_replaced_between_scans_is_not_unloaded() -> None:
    poller = Poller({"m": "1"})
    assert poller.observe({}) == []
    assert poller.observe({"m": "2"}) == []
    assert poller.observe({"m": "2"}) == ["m"]


def test_reverted_change_is_not_reported() -> None:
    poller = Poller({"m": "1"})
    assert poller.observe({"m": "2"}) == []
    assert poller.observe({"m": "1"}) == []
    assert poller.observe({"m": "1"}) == []


class Polled:
    """A manager in POLL mode that polls when the test requests it."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = bench
        self._tick = asyncio.Semaphore(0)
        self._idle = asyncio.Event()
        self.pauses: list[float] = []
        monkeypatch.setattr(polling, "poll_pause", self._pause)

    async def start(self, **settings: Any) -> RepositoryManager:
        made = await self.bench.start(model_control_mode="poll", **settings)
        await asyncio.wait_for(self._idle.wait(), 60)
        return made

    def request(self) -> None:
        self._tick.release()

    async def poll(self, times: int = 1) -> None:
        for _ in range(times):
            self._idle.clear()
            self.request()
            await asyncio.wait_for(self._idle.wait(), 60)

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._idle.set()
        await self._tick.acquire()


@pytest.fixture
def polled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Polled:
    return Polled(bench, monkeypatch)


async def test_polling_loads_added_and_changed_and_unloads_removed_models(
    bench: Bench, polled: Polled
) -> None:
    bench.add("same")
    bench.add("changed")
    removed = bench.add("removed")
    made = await polled.start()
    bench.add("added")
    bench.add("changed", CONFIG.replace("4", "8"))
    removed.rename(bench.repository.parent / "elsewhere")
    await polled.poll()
    assert sorted(bench.serve.deployed) == ["changed:1", "removed:1", "same:1"], "still changing"
    await polled.poll()
    assert sorted(bench.serve.deployed[3:]) == ["added:1", "changed:1@2"]
    assert [*await states(made)] == [
        ("added", "1", "READY"),
        ("changed", "1", "READY"),
        ("removed", "1", "UNAVAILABLE"),
        ("same", "1", "READY"),
    ]
    assert await reason(made, "removed") == "unloaded"
    await polled.poll(2)
    assert len(bench.serve.deployed) == 5


async def test_polling_loads_and_unloads_versions(bench: Bench, polled: Polled) -> None:
    bench.add("m")
    made = await polled.start()
    bench.add("m", versions=(2,))
    await polled.poll(2)
    assert await states(made) == [("m", "1", "UNAVAILABLE"), ("m", "2", "READY")]
    assert bench.serve.deployed == ["m:1", "m:2"]
    (bench.repository / "m" / "2").rmdir()
    await polled.poll(2)
    assert await states(made) == [("m", "1", "READY"), ("m", "2", "UNAVAILABLE")]


async def test_polling_keeps_served_version_when_a_change_fails(
    bench: Bench, polled: Polled, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add("m")
    made = await polled.start()
    bench.add("m", "no configuration")
    await polled.poll(2)
    assert await states(made) == [("m", "1", "READY")]
    assert "Poll failed for model directory 'm': failed to read text proto" in caplog.text
    assert made.table.all_ready
    bench.add("m")
    await polled.poll(2)
    assert await made.index() == [("m", "1", "READY", "")]
    assert bench.serve.deployed == ["m:1"]


async def test_polling_unloads_a_model_found_in_two_repositories(
    bench: Bench, polled: Polled, tmp_path: Path
) -> None:
    """Neither is served while both exist; a load request that finds two keeps the served version."""
    bench.add("m")
    second = tmp_path / "second"
    second.mkdir()
    made = await polled.start(model_repository=[str(bench.repository), str(second)])
    add(second, "m", CONFIG, (2,))
    await polled.poll(2)
    assert await made.index() == [("m", "1", "UNAVAILABLE", "model appears in two or more repositories")]
    assert made.table.all_ready, "a mistake in the repositories does not make the server unready"
    (bench.repository / "m").rename(tmp_path / "elsewhere")
    await polled.poll(2)
    assert await states(made) == [("m", "1", "UNAVAILABLE"), ("m", "2", "READY")]


async def test_polling_continues_when_the_repository_is_missing(
    bench: Bench, polled: Polled, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add("m")
    made = await polled.start()
    bench.repository.rename(bench.repository.parent / "away")
    await polled.poll(3)
    assert "failed to poll the model repositories" in caplog.text
    (bench.repository.parent / "away").rename(bench.repository)
    await polled.poll(2)
    assert await states(made) == [("m", "1", "READY")]


async def test_polling_unloads_models_removed_during_a_restart(bench: Bench, polled: Polled) -> None:
    bench.add("m")
    await bench.start()
    (bench.repository / "m").rename(bench.repository.parent / "elsewhere")
    made = await polled.start()
    await polled.poll(2)
    assert await reason(made, "m") == "unloaded"


async def test_failed_update_keeps_versions_out_of_policy(bench: Bench, polled: Polled) -> None:
    """They would make the server unready."""
    bench.add("m")
    made = await polled.start()
    bench.add("m", versions=(2,))
    await polled.poll(2)
    bench.add("m", "no configuration")
    await polled.poll(2)
    assert await made.index() == [("m", "1", "UNAVAILABLE", "unloaded"), ("m", "2", "READY", "")]
    assert made.table.all_ready


async def test_changed_files_are_looked_at_again_soon(bench: Bench, polled: Polled) -> None:
    bench.add("m")
    await polled.start(repository_poll_secs=1)
    for content in ("4", "5", "6", "7", "8"):
        bench.add("m", CONFIG.replace("4", content))
        await polled.poll()
    await polled.poll()
    assert polled.pauses == pytest.approx([1, 0.1, 0.2, 0.4, 0.8, 1, 1])
    bench.add("m")
    await polled.poll(2)
    assert polled.pauses[-2:] == pytest.approx([0.1, 1])


async def test_polling_does_not_wait_for_what_it_unloads(bench: Bench, polled: Polled) -> None:
    bench.add("m")
    removed = bench.add("removed")
    made = await polled.start()
    bench.serve.may_delete.clear()
    bench.add("m", versions=(2,))
    removed.rename(bench.repository.parent / "elsewhere")
    await polled.poll(2)
    assert await states(made) == [
        ("m", "1", "UNLOADING"),
        ("m", "2", "READY"),
        ("removed", "1", "UNLOADING"),
    ]
    assert made.table.all_ready, "what is no longer wanted does not make the server unready"
    bench.serve.may_delete.set()
    await until(lambda: all(e.state is not ModelState.UNLOADING for e in made.table.entries))
    assert await reason(made, "removed") == "unloaded"


async def test_polling_ends_without_a_word_when_the_server_stops(
    bench: Bench, polled: Polled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add("m")
    monkeypatch.setattr(monitor, "pause", lambda _: asyncio.sleep(0.01))  # what else runs until then
    made = await polled.start()

    def stop() -> None:
        made.__del__()
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(made._catalog, "scan", stop)
    polled.request()
    await until(lambda: not made._background)
    assert "failed to poll" not in caplog.text


async def test_an_interval_of_zero_is_no_polling(bench: Bench, polled: Polled) -> None:
    bench.add("m")
    made = await bench.start(model_control_mode="poll", repository_poll_secs=0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (made.table.all_ready, polled.pauses) == (True, [])
