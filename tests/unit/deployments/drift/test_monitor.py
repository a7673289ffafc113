"""The manager adds up what ingresses count, and says what has changed."""

import os
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import numpy as np
import pytest

from app.core.drift.counts import DriftAnswer, DriftReport, VersionCounts
from app.core.drift.extraction import Rows
from app.core.drift.reference import REFERENCE_FILE, encode_reference
from app.core.drift.spec import DriftSpec
from app.core.errors import ErrorCode, InferError
from app.core.tensors import Tensor
from app.drift.counter import RowCounter
from app.routing.table import ModelState, VersionEntry
from deployments.drift import kept
from deployments.drift.kept import KEEP_S, KeptDrift
from deployments.drift.monitor import DriftMonitor, Sources
from tests.unit.app.drift_fakes import reference
from tests.unit.app.routing_fakes import entry

REFERENCE = reference(width=13, outputs="OUT")
RNG = np.random.default_rng(4)


class Memory:
    """Keeps documents as they are written."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}
        self.writes = 0
        self.order: list[str] = []
        self.fails = False

    async def read(self) -> dict[str, KeptDrift]:
        return {name: msgspec.json.decode(text, type=KeptDrift) for name, text in self.texts.items()}

    async def write(self, name: str, small: bytes, whole: bytes) -> bool:
        assert small == whole
        self.writes += 1
        self.order.append(name)
        if not self.fails:
            self.texts[name] = small
        return not self.fails


class Bench:
    """A monitor over models in a directory, and ingresses that count for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.entries: list[VersionEntry] = [entry("m"), entry("other")]
        self.changes = 0
        self.time = 0.0
        self.kept = Memory()
        self.monitor = self.new_monitor()

    def new_monitor(self) -> DriftMonitor:
        sources = Sources(lambda: self.entries, self.directory, self.changed)
        return DriftMonitor(sources, self.kept, lambda: self.time)

    async def restart(self) -> None:
        """Start another monitor in place of this one, which has been killed."""
        self.monitor = self.new_monitor()
        await self.monitor.begin()
        await self.monitor.step()

    def directory(self, name: str) -> Path | None:
        return self.root / name if (self.root / name).is_dir() else None

    async def changed(self) -> None:
        self.changes += 1

    def write(self, name: str = "m", text: bytes = encode_reference(REFERENCE)) -> None:
        (self.root / name).mkdir(exist_ok=True)
        (self.root / name / REFERENCE_FILE).write_bytes(text)

    def ask(self, *known: str) -> DriftAnswer:
        return self.monitor.report(DriftReport("nobody", 0, [], list(known)))


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    await made.monitor.begin()
    return made


class Ingress:
    """Counts rows, and reports them."""

    def __init__(self, bench: Bench, name: str = "ingress") -> None:
        (told, *_) = bench.ask().references
        assert told.reference is not None
        self.counter, self.digest, self.number = RowCounter(told.reference), told.digest, 0
        self.bench, self.name = bench, name

    def add(self, rows: int, shift: float = 0.0) -> None:
        x = RNG.normal(size=(rows, 13))
        x[:, 3] += shift
        self.give(x, RNG.dirichlet([1, 1, 1], rows))

    def give(self, x: Rows, y: Rows) -> None:
        tensors = Tensor.from_array("IN", x), Tensor.from_array("OUT", y)
        self.counter.add(tensors[:1], tensors[1:], len(x), True)

    def report(self, model: str = "m") -> DriftReport:
        self.number += 1
        counts = VersionCounts(model, 1, self.digest, self.counter.take())
        report = DriftReport(self.name, self.number, [counts], [self.digest])
        self.bench.monitor.report(report)
        return report


async def test_references_are_found_and_told_once(bench: Bench) -> None:
    with pytest.raises(InferError, match="not read its references yet"):
        bench.ask()
    await bench.monitor.look()
    assert bench.ask() == DriftAnswer() and bench.changes == 0
    bench.write()
    await bench.monitor.look()
    (told,) = bench.ask().references
    assert (told.model, told.version, told.reference) == ("m", 1, REFERENCE.of(1))
    assert bench.ask(told.digest).references[0].reference is None
    await bench.monitor.look()
    assert bench.changes == 1


async def test_a_reference_that_is_written_again_begins_anew(bench: Bench) -> None:
    bench.write()
    await bench.monitor.look()
    ingress = Ingress(bench)
    ingress.add(100)
    ingress.report()
    assert bench.monitor.status("m").rows == 100
    bench.write(text=encode_reference(reference(width=13)))
    os.utime(bench.root / "m" / REFERENCE_FILE, ns=(1, 1))
    await bench.monitor.look()
    ingress.add(100)
    ingress.report()  # by the reference of before
    assert bench.monitor.status("m").rows == 0
    (bench.root / "m" / REFERENCE_FILE).unlink()
    await bench.monitor.look()
    assert bench.ask() == DriftAnswer() and bench.changes == 3


async def test_a_bad_reference_is_logged_once_and_watches_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(text=b"{}")
    for _ in range(3):
        await bench.monitor.look()
    assert bench.ask() == DriftAnswer()
    (message,) = caplog.messages
    assert message.startswith("model 'm' is not watched: ") and "drift.json" in message


async def test_versions_that_are_not_ready_are_not_watched(bench: Bench) -> None:
    bench.entries = [entry("m", 1, ModelState.UNAVAILABLE), entry("m", 2), entry("m", 3)]
    bench.write()
    await bench.monitor.look()
    assert [told.version for told in bench.ask().references] == [2, 3]
    told = bench.ask().references[0]
    assert told.reference is not None and told.reference.outputs is None  # which those of version 1 are not


async def test_two_ingresses_equal_one_exactly(tmp_path: Path) -> None:
    found = []
    rows = RNG.normal(size=(6000, 13)) + np.array([0.0] * 12 + [0.1])
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        bench = Bench(tmp_path / str(number))
        bench.write()
        await bench.monitor.begin()
        await bench.monitor.look()
        ingresses = [Ingress(bench, f"i{each}") for each in range(number)]
        for at, row in enumerate(rows):
            ingresses[at % 5 < 2 and number > 1].give(row[None], row[None, :3] ** 2)
            if at % 600 == 599:
                for ingress in ingresses:
                    ingress.report()
                await bench.monitor.test()
        found.append((bench.monitor.status("m"), bench.ask().figures))
    assert found[0] == found[1]
    assert found[0][0].rows == 6000


async def test_a_report_that_comes_twice_is_added_once(bench: Bench) -> None:
    bench.write()
    await bench.monitor.look()
    ingress = Ingress(bench)
    ingress.add(300)
    report = ingress.report()
    bench.monitor.report(report)
    assert bench.monitor.status("m").rows == 300


@pytest.mark.parametrize("cells", [[], [[1] * 21], [[-1, *[0] * 20]] * 13])
async def test_counts_that_do_not_fit_a_reference_are_left_out(bench: Bench, cells: list[list[int]]) -> None:
    bench.write()
    await bench.monitor.look()
    report = Ingress(bench).report()
    counted = report.versions[0]
    counted.counts = msgspec.structs.replace(counted.counts, rows=5, cells=cells)
    bench.monitor.report(msgspec.structs.replace(report, number=9))
    assert bench.monitor.status("m").rows == 0


async def test_a_change_is_told_by_log_index_and_figures_until_it_is_over(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench.write()
    await bench.monitor.look()
    ingress = Ingress(bench)

    async def window(shift: float = 0.0) -> None:
        bench.time += 10
        ingress.add(1000, shift)
        ingress.report()
        await bench.monitor.test()

    index = [("m", "1", "READY", ""), ("m", "2", "UNAVAILABLE", "unloaded"), ("other", "", "", "")]
    await window()
    caplog.clear()
    assert bench.monitor.marked(index) == index
    await window(1.0)
    (message,) = caplog.messages
    assert "'m' version 1: requests differ from the reference in IN[3] (" in message
    assert bench.monitor.marked(index) == [("m", "1", "READY", "drift: IN[3]"), *index[1:]]
    (figures,) = bench.ask().figures
    assert figures.alarmed and figures.evidence > figures.level == 1000 and len(figures.worst) == 8
    assert figures.worst[0].name == "IN[3]" and figures.rows == 2000
    status = bench.monitor.status("m")
    assert (status.since, [each.alarmed for each in status.features].index(True)) == (20.0, 3)
    assert status.confidence == pytest.approx(11 / 18, abs=0.01)  # of three shares at random
    for _ in range(60):
        await window()
    assert bench.monitor.marked(index) == index and "like the reference again" in caplog.messages[-1]


async def test_remarkable_values_are_counted(bench: Bench) -> None:
    bench.write()
    await bench.monitor.look()
    ingress = Ingress(bench)
    rows = np.ones((4, 13))
    rows[0], rows[1, 0], rows[2, 0] = 0, np.nan, 1e6
    ingress.give(rows, np.ones((4, 3)))
    ingress.report()
    assert bench.monitor.status("m").quality["IN"] == {"nan": 1, "range": 1, "zeros": 1}


def test_a_model_that_is_not_watched_says_what_to_do(bench: Bench) -> None:
    with pytest.raises(InferError, match="'nereid drift reference m' makes") as caught:
        bench.monitor.status("m")
    assert caught.value.code is ErrorCode.NOT_FOUND


async def test_restart_of_the_manager_goes_on_where_it_was(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bench.write()
    await bench.monitor.step()
    ingress = Ingress(bench)
    for _ in range(3):
        ingress.add(1000, 1.0)
        last = ingress.report()
        bench.time += KEEP_S
        await bench.monitor.step()
    before, figures = bench.monitor.status("m"), bench.ask().figures
    assert before.since and before.rows == 3000
    await bench.restart()
    assert (bench.monitor.status("m"), bench.ask().figures) == (before, figures)
    assert "is watched for drift again, with what was found before" in caplog.text
    bench.monitor.report(last)  # its answer did not arrive
    assert bench.monitor.status("m").rows == 3000
    ingress.add(100)
    ingress.report()
    assert bench.monitor.status("m").rows == 3100
    assert bench.monitor.marked([("m", "1", "READY", "")]) == [("m", "1", "READY", "drift: IN[3]")]


async def test_what_was_found_by_another_reference_or_rule_is_forgotten(bench: Bench) -> None:
    bench.write()
    await bench.monitor.step()
    ingress = Ingress(bench)
    ingress.add(300)
    ingress.report()
    await bench.monitor.step()
    assert bench.kept.texts
    bench.entries[0] = msgspec.structs.replace(bench.entries[0], drift=DriftSpec(alpha=0.01))
    await bench.restart()
    assert bench.monitor.status("m").rows == 0


async def test_model_is_kept_twice_a_minute_and_when_its_alarm_changes(bench: Bench) -> None:
    bench.write()
    await bench.monitor.step()
    assert bench.kept.writes == 0  # nothing was counted
    ingress, writes = Ingress(bench), []
    for shift in (0, 0, 0, 0, 2):
        bench.time += KEEP_S / 3
        ingress.add(1000, shift)
        ingress.report()
        await bench.monitor.step()
        writes.append(bench.kept.writes)
    assert writes == [1, 1, 1, 2, 3]
    bench.time += KEEP_S
    await bench.monitor.step()
    assert bench.kept.writes == 3  # nothing has come


async def test_document_that_was_not_kept_is_written_again_without_new_rows(bench: Bench) -> None:
    bench.write()
    await bench.monitor.step()
    ingress = Ingress(bench)
    ingress.add(1000)
    ingress.report()
    bench.kept.fails = True
    for writes in (1, 2):
        bench.time += KEEP_S
        await bench.monitor.step()
        assert bench.kept.writes == writes and not bench.kept.texts
    bench.kept.fails = False
    bench.time += KEEP_S
    await bench.monitor.step()
    assert bench.kept.texts
    bench.time += KEEP_S
    await bench.monitor.step()
    assert bench.kept.writes == 3


async def test_documents_beyond_the_budget_of_a_step_go_first_in_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "STEP_BYTES", 1)  # a document a step
    bench.write()
    bench.write("other")
    await bench.monitor.step()
    ingress = Ingress(bench)
    written = []
    for models in (("m", "other"), ("m",), ("m",), ()):
        for model in models:
            ingress.add(1000)
            ingress.report(model)
        await bench.monitor.step()
        written.append([*bench.kept.order])
        bench.time += KEEP_S
    assert written[-1] == ["m", "other", "m"]
    assert list(map(len, written)) == [1, 2, 3, 3]


async def test_little_that_is_new_is_kept_every_five_minutes(bench: Bench) -> None:
    bench.write()
    await bench.monitor.step()
    ingress = Ingress(bench)
    ingress.add(1000)
    ingress.report()
    await bench.monitor.step()
    times = []
    for _ in range(21):
        bench.time += KEEP_S
        ingress.add(1)
        ingress.report()
        await bench.monitor.step()
        times.append(bench.kept.writes)
    assert times == [1] * 9 + [2] * 10 + [3] * 2


async def test_store_that_cannot_be_read_begins_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bench.kept, "read", AsyncMock(side_effect=RuntimeError("no store")))
    bench.write()
    await bench.restart()
    assert bench.monitor.status("m").rows == 0
    assert "reading what is known of drift" in caplog.text
