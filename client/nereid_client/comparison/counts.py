"""Adds up what was compared: how many answers differ, by output, and the worst of them."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from nereid_client.comparison.acceptance import Acceptance, accept
from nereid_client.comparison.compare import MOST, Compared, OutputDifference, TensorLike, compare
from nereid_client.comparison.rules import ComparisonRules

WORST: Final = 10
_CONFIDENCE: Final = 0.99


class Worst(NamedTuple):
    """An answer that is far from its rules."""

    severity: float
    row: str
    why: str


def worst_of(found: Iterable[Worst], most: int = WORST) -> list[Worst]:
    """Return the worst answers, the worst first; each row once."""
    by_row = {each.row: each for each in sorted(found)}
    return sorted(by_row.values(), key=lambda each: (-each.severity, each.row))[:most]


class OutputCounts:
    """How often one output was compared, and what was found.

    Attributes:
        compared: answers.
        faults: how many were outside the rule, by what is wrong.
        near_ties: see `ComparisonRules.margin`.
        absolute: the largest difference of two elements.
        cosine: the lowest one.
    """

    def __init__(self) -> None:
        self.compared = self.near_ties = 0
        self.faults: Counter[str] = Counter()
        self.absolute, self.cosine = 0.0, 1.0

    def add(self, found: OutputDifference) -> None:
        """Count one answer."""
        self.compared += 1
        self.near_ties += found.near_tie is True
        if found.fault:
            self.faults[found.fault] += 1
        if found.absolute < MOST:
            self.absolute = max(self.absolute, found.absolute)
        self.cosine = min(self.cosine, found.cosine)


class Comparison:
    """The answers of one program compared with those that are expected, by rules.

    Attributes:
        compared: answers of both; those that failed are not among them.
        differing: of those, outside their tolerances.
        disagreeing: of the others, with another largest element.
        near_ties: of the others, see `Compared.near_tie`.
        failed: the other side did not answer, by its reasons.
        outputs: by name.
    """

    def __init__(self, rules: ComparisonRules) -> None:
        self.rules = rules
        self.compared = self.differing = self.disagreeing = self.near_ties = 0
        self.failed: Counter[str] = Counter()
        self.outputs: dict[str, OutputCounts] = {}
        self._worst: list[Worst] = []

    def add(self, row: str, expected: Iterable[TensorLike], answered: Iterable[TensorLike]) -> Compared:
        """Compare an answer and count it; `row` names the request."""
        found = compare(self.rules, expected, answered)
        self.count(row, found)
        return found

    def count(self, row: str, found: Compared) -> None:
        """Count an answer that was compared."""
        self.compared += 1
        self.differing += found.differs
        self.disagreeing += found.disagrees
        self.near_ties += found.near_tie
        for each in found.outputs:
            self.outputs.setdefault(each.output, OutputCounts()).add(each)
        if found.bad:
            self._keep(Worst(found.severity, row, str(found)))

    def fail(self, row: str, why: str) -> None:
        """Count a request that was not answered."""
        self.failed[why] += 1
        self._keep(Worst(MOST, row, why))

    def _keep(self, worst: Worst) -> None:
        self._worst.append(worst)
        if len(self._worst) > 4 * WORST:
            self._worst = worst_of(self._worst)

    @property
    def worst(self) -> list[Worst]:
        """The ten answers that are furthest from their rules, the worst first."""
        return worst_of(self._worst)

    @property
    def bad(self) -> int:
        """Answers outside their rules."""
        return self.differing + self.disagreeing

    def acceptance(self) -> Acceptance:
        """Say whether these answers show that enough are right; failures are not, near ties do not count."""
        failed = self.failed.total()
        total = self.compared - self.near_ties + failed
        return accept(self.bad + failed, total, self.rules.allowed, _CONFIDENCE)
