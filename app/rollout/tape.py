"""Repeats recorded requests at the candidate of a rollout, before it gets any of clients."""

import asyncio
import logging
import random
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

from app.core.errors import Failure, InferError
from app.core.identifiers import name_of
from app.core.inference import Call, Sink
from app.core.rollout.outcomes import Outcomes, StepOutcomes
from app.core.rollout.split import Split
from app.core.rollout.tape import TapeFound, TapePart, TapeWork, WorstRow
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.rollout.answer import Answer
from app.rollout.repeated import Expected, Finding, Repeated, mirrored
from app.rollout.tape_rows import Chosen, Claims, Spot, choose, is_kept, read
from app.routing.table import VersionEntry
from nereid_client.comparison.counts import Worst, worst_of
from nereid_client.tape.rows import Row, TapeTensor

logger = logging.getLogger(__name__)

pause = asyncio.sleep
_AGAIN_S: Final = 0.5
"""Seconds until a candidate that is not there, or full, is asked again; and parts of others are looked at."""
_MOST_ID, _MOST_WHY = 64, 100
_FAILED: Final = 1e30


class Versions(Protocol):
    """The two versions of a rollout, as this process reaches them."""

    split: Split
    stable: VersionEntry

    @property
    def at_hand(self) -> VersionEntry | None:
        """The candidate, if it may get a request now."""

    @property
    def hang_s(self) -> float:
        """Seconds after which a request has failed that is not answered."""

    def send(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Start a request of one of the two versions."""


class TapeRun:
    """The requests of this node's tape, as far as they are repeated by this process.

    Its ingresses divide the rows by parts, each of which is counted once: when an ingress ends, another one
    repeats what was not counted. A row whose answer was not kept, or is another version's, is first repeated
    at the stable version.

    Args:
        versions: of the rollout.
        directory: of the node's segments; None for no tape.
    """

    def __init__(self, versions: Versions, directory: Path | None) -> None:
        self._versions, self._split = versions, versions.split
        self._directory = directory
        self._found = TapeFound("")
        self._looked = directory is None
        self._counted: list[StepOutcomes] = []
        self._claims: Claims | None = None
        self._task: asyncio.Task[None] | None = None
        self._next = 0.0
        self._gap_s = 0.0

    def start(self) -> None:
        """Begin, if there is a tape."""
        work = self._split.tape
        if self._directory is not None and work is not None:
            running = self._run(self._directory, work)
            self._task = asyncio.get_running_loop().create_task(running)

    def stop(self) -> None:
        """Stop; what is not counted is dropped."""
        if self._task is not None:
            self._task.cancel()
        if self._claims is not None:
            self._claims.close()
            self._claims = None

    def take(self) -> list[StepOutcomes]:
        """Return what was found, and the parts that were repeated since the last time."""
        counted, self._counted = self._counted, []
        looked = [self._outcomes(Outcomes(), found=self._found)] if self._looked else []
        return [*looked, *counted]

    def arrived(self, part: TapePart) -> None:
        """Note that the manager has counted a part."""
        if self._claims is not None and part.tape == self._found.tape:
            self._claims.count(part.number)

    def _outcomes(
        self, outcomes: Outcomes, found: TapeFound | None = None, part: TapePart | None = None
    ) -> StepOutcomes:
        return StepOutcomes(self._split.rollout, self._split.step, outcomes, found=found, part=part)

    async def _run(self, directory: Path, work: TapeWork) -> None:
        tape = directory.name
        try:
            chosen = await asyncio.to_thread(choose, directory, name_of(self._split.name), work)
            self._claims = Claims(directory, self._split.rollout, self._split.step)
        except OSError as error:
            logger.warning("the tape in '%s' cannot be read: %s", directory, error)
            self._found, self._looked = TapeFound(tape, left_out={str(error): 1}), True
            return
        if self._versions.stable.decoupled:
            left_out = {**chosen.left_out, "its model is decoupled": chosen.rows}
            chosen = Chosen({}, Counter(left_out), 0.0)
        parts = sum(1 << number for number in chosen.parts)
        self._found = TapeFound(tape, chosen.rows, parts, dict(chosen.left_out))
        self._looked = True
        self._gap_s = chosen.mean_gap_s / work.speed if work.speed else 0.0
        try:
            await self._repeat_all(chosen, work, self._claims)
        except Exception:  # the manager decides by what was counted, when the time is over
            logger.exception("repeating the tape of '%s'", self._split.name)

    async def _repeat_all(self, chosen: Chosen, work: TapeWork, claims: Claims) -> None:
        """Repeat the parts that no other process repeats."""
        room = asyncio.Semaphore(work.in_flight)
        waiting = list(chosen.parts)
        random.shuffle(waiting)  # so that processes seldom want the same one
        while waiting:
            part = next((number for number in waiting if claims.claim(number)), None)
            if part is None:
                await pause(_AGAIN_S)
                waiting = [number for number in waiting if not claims.is_counted(number)]
                continue
            waiting.remove(part)
            await self._repeat_part(part, chosen.parts[part], room)

    async def _repeat_part(self, number: int, spots: list[Spot], room: asyncio.Semaphore) -> None:
        outcomes, worst, left_out = Outcomes(), [], Counter[str]()  # type: ignore[var-annotated]

        async def repeat(spot: Spot) -> None:
            async with room:
                await self._in_time()
                await self._repeat(spot, outcomes, worst, left_out)

        await asyncio.gather(*(repeat(spot) for spot in spots))
        rows = tuple(_worst_row(each) for each in worst_of(worst))
        if left_out:
            known = Counter(self._found.left_out) + left_out
            self._found = TapeFound(self._found.tape, self._found.rows, self._found.parts, dict(known))
        self._counted.append(self._outcomes(outcomes, part=TapePart(self._found.tape, number, rows)))

    async def _in_time(self) -> None:
        """Wait for the moment of the next request."""
        now = monotonic()
        self._next = max(self._next, now) + self._gap_s
        if self._gap_s:
            await pause(self._next - self._gap_s - now)

    async def _repeat(
        self, spot: Spot, outcomes: Outcomes, worst: list[Worst], left_out: Counter[str]
    ) -> None:
        row = await asyncio.to_thread(read, spot)
        if row is None:
            left_out["it was removed"] += 1
            return
        request = request_of(row)
        expected = self._recorded(row, request) or await self._ask(request)
        if expected is None:
            left_out["the stable version does not answer it"] += 1
            return
        finding = await self._compared(request, expected)
        finding.add_to(outcomes)
        found = finding.found
        if isinstance(found, Failure):
            worst.append(Worst(_FAILED, f"{row.key} {row.id}", found.message))
        elif found.bad:
            worst.append(Worst(found.severity, f"{row.key} {row.id}", str(found)))

    def _recorded(self, row: Row, request: InferRequest) -> Expected | None:
        """Return what the stable version has answered, if the tape has it."""
        stable = self._versions.stable
        if row.version != str(stable.version) or not is_kept(row):
            return None
        answer, final = Answer(request), InferResponse()
        for recorded in row.responses:
            outputs = tuple(map(_tensor, recorded.outputs))
            final = InferResponse(request.model_name, row.version, outputs, row.id, final=recorded.final)
            answer.add(stable, final)
        return Expected.of(answer, final)

    async def _ask(self, request: InferRequest) -> Expected | None:
        """Ask the stable version; None if it fails the request."""
        stable = self._versions.stable
        repeated = mirrored(request, stable, self._versions.hang_s)
        answer = Answer(repeated)
        answered: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def receive(response: InferResponse) -> None:
            answer.add(stable, response)
            if response.final and not answered.done():
                answered.set_result(response)

        try:
            self._versions.send(stable, repeated, receive)
        except InferError:
            return None
        final = await answered
        return None if final.failure is not None else Expected.of(answer, final)

    async def _compared(self, request: InferRequest, expected: Expected) -> Finding:
        """Repeat a request at the candidate, as soon as that is there and not full."""
        while True:
            candidate = self._versions.at_hand
            if candidate is not None:
                finding = await self._sent(candidate, request, expected)
                if not finding.refused:
                    return finding
            await pause(_AGAIN_S)

    async def _sent(self, candidate: VersionEntry, request: InferRequest, expected: Expected) -> Finding:
        ended: asyncio.Future[Finding] = asyncio.get_running_loop().create_future()

        def end(finding: Finding) -> None:
            if not ended.done():
                ended.set_result(finding)

        repeated = mirrored(request, candidate, self._versions.hang_s)
        rules, send = self._versions.split.comparison, self._versions.send
        Repeated.start(candidate, repeated, expected, rules, send, end)
        return await ended


def request_of(row: Row) -> InferRequest:
    """Return the request that a row has recorded, without what no other version should see."""
    return InferRequest(
        row.model,
        "",
        tuple(map(_tensor, row.inputs)),
        tuple(RequestedOutput(name) for name in row.requested),
        row.id,
        row.parameters,
    )


def _tensor(tensor: TapeTensor) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)


def _worst_row(worst: Worst) -> WorstRow:
    key, _, name = worst.row.partition(" ")
    return WorstRow(key, name[:_MOST_ID], worst.severity, worst.why[:_MOST_WHY])
