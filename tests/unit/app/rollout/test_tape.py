"""Recorded requests that are repeated at a candidate: which, by whom, and what is counted."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from app.core.errors import ErrorCode, Failure, FailureReason, unavailable
from app.core.inference import Sink
from app.core.rollout.outcomes import MirrorOutcomes, StepOutcomes
from app.core.rollout.split import Split
from app.core.rollout.tape import PARTS, TapeWork
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from app.rollout import tape, tape_rows
from app.rollout.tape import TapeRun
from app.rollout.tape_rows import Claims, choose
from app.routing.table import VersionEntry
from nereid_client.comparison.rules import ComparisonRules
from nereid_client.tape.rows import Row, TapeResponse
from nereid_client.tape.segments import cut, seal
from tests.unit.app.rollout.conftest import Rollout
from tests.unit.client.tape.made import SECOND, row, tensor, write
from tests.waiting import until

WORK = TapeWork(requests=100, until_ns=10_000 * SECOND, in_flight=8, speed=0.0)
REFUSED = Failure(ErrorCode.UNAVAILABLE, "its queue is full", FailureReason.REJECTED)


def values(*floats: float) -> bytes:
    return np.array(floats, np.float32).tobytes()


def recorded(number: int, at_s: float = 0.0, **changed: Any) -> Row:
    """A request of model m whose answer by version 1 is its input, doubled."""
    answer = TapeResponse(1_000, (tensor("y", values(2.0 * number, 1)),), final=True)
    fields = {"model": "m", "version": "1", "id": f"c{number}", "responses": (answer,), **changed}
    return row(number, at_s or 100.0 + number, **{"inputs": (tensor("x", values(number)),), **fields})


def entry(version: int) -> VersionEntry:
    return Rollout().router.table.by_name["m"][version]


class Candidate:
    """Both versions of m: `answers` says what the candidate answers to what it is asked."""

    def __init__(self, answers: Callable[[float], Any] = lambda x: (2 * x, 1.0)) -> None:
        self.split = Split("r", "m", 1, 2, step=3, tape=WORK, state="tape")
        self.entries = {each: entry(each) for each in (1, 2)}
        self.stable = self.entries[1]
        self.at_hand: VersionEntry | None = self.entries[2]
        self.hang_s = 5.0
        self.answers = answers
        self.asked: list[tuple[int, InferRequest]] = []
        self.under_way = self.most = 0

    def send(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Any:
        self.asked.append((entry.version, request))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        asyncio.get_running_loop().call_soon(self._answer, entry.version, request, sink)
        return SimpleNamespace(cancel=lambda advice=False: None)

    def _answer(self, version: int, request: InferRequest, sink: Sink) -> None:
        self.under_way -= 1
        (x,) = np.frombuffer(request.inputs[0].data, np.float32)
        found = self.answers(float(x)) if version == 2 else (2 * float(x), 1.0)
        if isinstance(found, Failure):
            sink(failed(found))
        else:
            output = Tensor.from_array("y", np.array(found, np.float32))
            sink(InferResponse("m", str(version), (output,), request.id))


def run_of(versions: Candidate, directory: Path | None, **work: Any) -> TapeRun:
    versions.split = msgspec.structs.replace(versions.split, tape=msgspec.structs.replace(WORK, **work))
    made = TapeRun(cast(Any, versions), directory)
    made.start()
    return made


async def finished(made: TapeRun) -> list[StepOutcomes]:
    """What a run has reported, once all of its parts were repeated."""
    taken: list[StepOutcomes] = []

    def over() -> bool:
        taken.extend(made.take())
        found = next((each.found for each in taken if each.found), None)
        done = {each.part.number for each in taken if each.part is not None}
        return found is not None and found.parts == sum(1 << number for number in done)

    await until(over)
    made.stop()
    return taken


def total(steps: list[StepOutcomes]) -> MirrorOutcomes:
    return sum((each.outcomes.mirror for each in steps), MirrorOutcomes())


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's tape with 100 requests of m, the newest 60 in a file that is still written."""
    path = write(tmp_path / "node" / "a-1.open", [recorded(number) for number in range(1, 41)])
    seal(path, cut(path))
    write(tmp_path / "node" / "a-2.open", [recorded(number) for number in range(41, 101)])
    return tmp_path / "node"


async def test_the_candidate_answers_what_was_recorded(node: Path) -> None:
    versions = Candidate()
    steps = await finished(run_of(versions, node))
    assert total(steps) == MirrorOutcomes(compared=100)
    assert {(each.rollout, each.step) for each in steps} == {("r", 3)}
    asked = sorted(versions.asked, key=lambda each: int(each[1].id[1:]))
    assert [version for version, _ in asked] == [2] * 100 and 1 < versions.most <= 8
    request = asked[6][1]
    assert (request.id, request.mirrored, request.model_version, request.priority) == ("c7", True, "2", 0)
    assert request.deadline > 0 and np.frombuffer(request.inputs[0].data, np.float32) == 7


async def test_differences_are_told_with_their_rows(node: Path) -> None:
    versions = Candidate(lambda x: (2 * x, 1.0) if x % 20 else (-x, 1.0))
    steps = await finished(run_of(versions, node))
    assert total(steps).compared == 100 and total(steps).differing == 5
    worst = [each for step in steps if step.part for each in step.part.worst]
    assert sorted(each.id for each in worst) == ["c100", "c20", "c40", "c60", "c80"]
    assert {each.row for each in worst} == {f"ab-{number}" for number in (20, 40, 60, 80, 100)}
    assert all(each.why.startswith("y: values") for each in worst)


async def test_the_rules_are_those_of_the_rollout(node: Path) -> None:
    versions = Candidate(lambda x: (2 * x + 0.5, 1.0))
    versions.split = msgspec.structs.replace(versions.split, comparison=ComparisonRules({"y": "exact"}))
    assert total(await finished(run_of(versions, node))).differing == 100


async def test_failures_of_the_candidate_are_counted(node: Path) -> None:
    broken = Failure(ErrorCode.INTERNAL, "broken")
    steps = await finished(run_of(Candidate(lambda x: broken if x == 5 else (2 * x, 1.0)), node))
    assert (total(steps).failed, total(steps).compared) == (1, 99)
    assert sum(each.outcomes.candidate.reasons.get("broken", 0) for each in steps) == 1
    (worst,) = [each for step in steps if step.part for each in step.part.worst]
    assert (worst.id, worst.why) == ("c5", "broken")


async def test_a_candidate_that_is_full_or_away_is_asked_again(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = Candidate()
    refusals = {3.0: 2, 7.0: 1}

    def answer(x: float) -> Any:
        if refusals.get(x, 0):
            refusals[x] -= 1
            return REFUSED
        return 2 * x, 1.0

    async def pause(seconds: float) -> None:
        versions.at_hand = versions.entries[2]
        await asyncio.sleep(0)

    versions.answers, versions.at_hand = answer, None
    monkeypatch.setattr(tape, "pause", pause)
    assert total(await finished(run_of(versions, node))) == MirrorOutcomes(compared=100)


async def test_what_the_tape_lacks_the_stable_version_is_asked(tmp_path: Path) -> None:
    kept = recorded(1)
    hidden = TapeResponse(1_000, (tensor("y", b"", nbytes=8, state="size"),), final=True)
    rows = [kept, recorded(2, version="7"), recorded(3, responses=(hidden,))]
    write(tmp_path / "a-1.open", rows)
    versions = Candidate()
    steps = await finished(run_of(versions, tmp_path))
    assert total(steps) == MirrorOutcomes(compared=3)
    assert sorted(each.id for version, each in versions.asked if version == 1) == ["c2", "c3"]
    assert all(each.mirrored for _, each in versions.asked)


async def test_a_stable_version_that_is_away_leaves_rows_out(tmp_path: Path) -> None:
    write(tmp_path / "a-1.open", [recorded(1), recorded(2, version="7")])
    versions = Candidate()
    send = versions.send

    def refuse(entry: VersionEntry, request: InferRequest, sink: Sink) -> Any:
        if entry.version == 1:
            raise unavailable("no replica")
        return send(entry, request, sink)

    versions.send = refuse  # type: ignore[method-assign]
    made = run_of(versions, tmp_path)
    assert total(await finished(made)).compared == 1
    assert made._found.left_out == {"the stable version does not answer it": 1}


def test_the_newest_rows_are_chosen_that_can_be_repeated(tmp_path: Path) -> None:
    failure = TapeResponse(1, code="INTERNAL", error="broken", final=True)
    rows = [recorded(number) for number in range(1, 31)]
    rows[25] = recorded(26, responses=(failure,))
    rows[26] = recorded(27, inputs=(tensor("x", b"", nbytes=9, state="size"),))
    rows[27] = recorded(28, sequence_id=4)
    rows[28] = recorded(29, model="other")
    write(tmp_path / "a-1.open", rows)
    work = msgspec.structs.replace(WORK, requests=10, until_ns=int(129.5 * SECOND))
    found = choose(tmp_path, "m", work)
    moments = sorted(spot.moment // SECOND for spots in found.parts.values() for spot in spots)
    assert moments == [*range(116, 126)], "of ten, the newest"
    assert found.rows == 10 and found.mean_gap_s == pytest.approx(1.0)
    assert sum(found.left_out.values()) == 3 and found.left_out["it belongs to a sequence"] == 1
    (tmp_path / "empty").mkdir()
    assert choose(tmp_path / "empty", "m", work).rows == 0


def test_a_segment_that_is_sealed_meanwhile_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a-1.open", [recorded(1)])
    ((spot,),) = choose(tmp_path, "m", WORK).parts.values()
    seal(path, cut(path))
    read = tape_rows.read(spot)
    assert read is not None and read.id == "c1"
    path.with_suffix(".tape").unlink()
    assert tape_rows.read(spot) is None


async def test_without_a_tape_it_says_so() -> None:
    made = run_of(Candidate(), None)
    (step,) = made.take()
    assert step.found is not None and step.found.tape == ""


async def test_a_tape_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    made = run_of(Candidate(), tmp_path / "gone")
    await until(lambda: bool(made.take()))
    (step,) = made.take()
    assert step.found is not None and step.found.rows == 0 and "gone" in next(iter(step.found.left_out))


CLAIM = """
import sys, time
from pathlib import Path
from app.rollout.tape_rows import Claims
claims = Claims(Path(sys.argv[1]), "r", 3)
print([part for part in range(32) if part % 2 and claims.claim(part)], flush=True)
time.sleep(60)
"""


async def test_ingresses_of_a_node_divide_the_parts_and_take_over_those_of_one_that_ends(node: Path) -> None:
    arguments = [sys.executable, "-c", CLAIM, str(node)]
    environment = {"PYTHONPATH": ".:client"}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == str([*range(1, PARTS, 2)])
        versions = Candidate()
        made = run_of(versions, node)
        taken: list[StepOutcomes] = []
        chosen = choose(node, "m", WORK).parts

        def has(numbers: set[int]) -> bool:
            taken.extend(made.take())
            return {each.part.number for each in taken if each.part} == numbers

        await until(lambda: has({number for number in chosen if number % 2 == 0}))
        other.kill()
    await until(lambda: has(set(chosen)))
    made.stop()
    assert total(taken).compared == len(versions.asked) == 100


async def test_a_part_that_the_manager_has_is_not_repeated(node: Path) -> None:
    traffic, taken = run_of(Candidate(), node), list[StepOutcomes]()
    wanted = len(choose(node, "m", WORK).parts)

    def over() -> bool:
        taken.extend(traffic.take())
        return sum(each.part is not None for each in taken) == wanted

    await until(over)
    for each in taken:
        if each.part is not None:
            traffic.arrived(each.part)
    traffic.stop()
    again = Candidate()
    made = run_of(again, node)
    await until(lambda: bool(made.take()))
    await asyncio.sleep(0)
    made.stop()
    assert again.asked == [] and total(taken).compared == 100


def test_claims_of_long_ago_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Claims(tmp_path, "old", 1).close()
    monkeypatch.setattr(tape_rows, "_OLD_S", -1.0)
    Claims(tmp_path, "new", 1).close()
    assert [each.name for each in tmp_path.iterdir()] == ["judged-new-1"]


async def test_at_a_speed_requests_wait_for_their_moment(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(tape, "pause", pause)
    assert total(await finished(run_of(Candidate(), node, speed=10.0))).compared == 100
    waits = sorted(each for each in paused if each != tape._AGAIN_S)
    assert len(waits) >= 100 and waits[-1] == pytest.approx(9.9, abs=1.0), "a tenth of a second each"


async def test_traffic_repeats_the_tape_while_the_rollout_is_in_that_state(rollout: Rollout) -> None:
    rollout.publish(weight=0, tape=WORK, state="tape")
    steps = rollout.traffic.take()
    assert [each.found.tape for each in steps if each.found] == [""]
    rollout.traffic.arrived(steps)
    rollout.publish(step=1, tape=None, state="step")
    assert not any(each.found for each in rollout.traffic.take())
