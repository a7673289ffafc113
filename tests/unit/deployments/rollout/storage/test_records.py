"""What is stored of a rollout."""

import logging
from typing import Any

import msgspec
import pytest

from app.core.rollout.outcomes import Outcomes, VersionOutcomes
from app.core.rollout.spec import RolloutSpec
from app.core.system.lone_thread import LoneThread
from deployments.rollout.states import machine
from deployments.rollout.states.record import Record
from deployments.rollout.storage.documents import Storage
from deployments.rollout.storage.records import MAX_BYTES, Records, decoded, encoded
from tests.unit.deployments.manager.manager_bench import FakeStore


def record(name: str = "m", why: str = "") -> Record:
    made = machine.begun(
        name, (1, 2), RolloutSpec(), now=5.0, identity=machine.Identity("r", "f", "s"), why=why
    )
    return machine.loaded(made, 6.0)


def test_a_record_is_read_as_it_was_written_but_for_latencies() -> None:
    latencies = {bucket: 100_000 for bucket in range(120)}
    counts = Outcomes(VersionOutcomes(ok=7, latencies=latencies), VersionOutcomes(failed=3, rescued=2))
    written = machine.counted(record(), 1, counts, 100.0)
    read = decoded(encoded(written))
    assert read.status.outcomes.stable == VersionOutcomes(ok=7)
    assert read.status.total.candidate == VersionOutcomes(failed=3, rescued=2)
    assert encoded(read) == encoded(written) and read.status.history == written.status.history


def test_a_record_is_small_whatever_has_happened() -> None:
    long = record(why="x" * 10_000)
    for second in range(100):
        long = machine.paused(long, '"\n' * 1000, second)
    assert len(encoded(long)) <= MAX_BYTES
    assert decoded(encoded(long)).status.history[-1] == long.status.history[-1], "the newest are kept"


async def test_records_are_stored_by_model() -> None:
    store = FakeStore()
    await Records(Storage(store)).write(record("m"))
    await Records(Storage(store)).write(record("n"))
    store.values["rollout/o"] = b'{"name": 1}'
    assert sorted(await Records(Storage(store)).read()) == ["m", "n"], (
        "what another version wrote is left out"
    )
    msgspec.json.decode(store.values["rollout/m"])  # JSON


async def test_a_store_that_fails_or_hangs_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(FakeStore):
        def write(self, key: str, value: bytes) -> None:
            raise RuntimeError("no control service")

    await Records(Storage(Broken())).write(record())
    assert "is not stored beyond a restart: RuntimeError('no control service')" in caplog.text

    async def hangs(*arguments: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(LoneThread, "run", hangs)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert await Records(Storage(FakeStore())).read() == {}
    assert "cannot read the stored documents of kind rollout" in caplog.text
