"""Repeats answered requests at the candidate of a rollout, to compare what the two versions respond."""

from functools import partial
from pathlib import Path
from typing import Final

from app.core.tensors import InferRequest
from app.rollout.repeated import Expected, Finding, Repeated, Send, mirrored
from app.rollout.tally import StepTally
from app.routing.table import VersionEntry
from nereid_client.comparison.rules import ComparisonRules

MAX_UNDER_WAY: Final = 64
_FEWEST: Final = 4
"""So many are under way at a candidate at first; half as many as before when it does not answer promptly."""
_CANDIDATES: Final = 256
MAX_BYTES: Final = 256 << 20
"""Bytes of the inputs and outputs of mirrored requests under way; those above are skipped."""
_TIME_S: Final = 30.0


class Mirror:
    """The mirrored requests of this process. Runs on the data-plane loop.

    They begin when their client has its answer, have the lowest priority of the model, and are executed
    whatever a response cache has. The replica counts them as any other, the rollout as mirrored only. Fewer
    are under way at once while the candidate is slow with them: more would wait there in vain.

    Args:
        tape: where this node's tape is, whose requests are repeated too; None for nowhere.
    """

    def __init__(self, tape: Path | None = None) -> None:
        self.tape = tape
        self._under_way = 0
        self._bytes = 0
        self._under_way_at: dict[str, int] = {}
        self._most_at: dict[str, int] = {}
        """Of a candidate, by application: those that are under way, and how many may be."""

    def repeat(
        self,
        request: InferRequest,
        expected: Expected,
        candidate: VersionEntry,
        send: Send,
        tally: StepTally,
        rules: ComparisonRules,
        seconds: float = _TIME_S,
    ) -> None:
        """Repeat a request and compare the response; count it in `tally`.

        Args:
            request: the request, whose tensors nobody changes any more.
            expected: what the stable version has answered.
            candidate: the version to send it to.
            send: sends it.
            tally: of the step that the rollout is in.
            rules: what the outputs may differ by.
            seconds: after which a request has failed that is not answered.
        """
        at = candidate.application
        nbytes = sum(len(tensor.data) for tensor in (*request.inputs, *expected.outputs))
        full = self._under_way_at.get(at, 0) >= self._most_at.get(at, _FEWEST)
        if full or self._under_way >= MAX_UNDER_WAY or self._bytes + nbytes > MAX_BYTES:
            tally.outcomes.mirror.skipped += 1
            return
        self._under_way += 1
        self._under_way_at[at] = self._under_way_at.get(at, 0) + 1
        self._bytes += nbytes
        ended = partial(self._ended, at, nbytes, tally)
        Repeated.start(candidate, mirrored(request, candidate, seconds), expected, rules, send, ended)

    def _ended(self, at: str, nbytes: int, tally: StepTally, finding: Finding) -> None:
        finding.add_to(tally.outcomes)
        prompt = finding.prompt and not finding.refused
        self._under_way -= 1
        self._bytes -= nbytes
        self._under_way_at[at] -= 1
        if not self._under_way_at[at]:
            del self._under_way_at[at]
        most = self._most_at.pop(at, _FEWEST)
        self._most_at[at] = min(most + 1, MAX_UNDER_WAY) if prompt else max(most // 2, _FEWEST)
        if len(self._most_at) > _CANDIDATES:
            del self._most_at[next(iter(self._most_at))]
