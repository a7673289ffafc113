"""What differs between the answers that are expected and those that were given. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from nereid_client.comparison.compare import MOST, Compared, OutputDifference, compare
from nereid_client.comparison.counts import Comparison
from nereid_client.comparison.rules import ComparisonRules
from nereid_client.tape.rows import KEPT, TRUNCATED, Row
from nereid_client.tools.replay.load import Answer, Failed
from nereid_client.tools.replay.plan import Plan, Planned
from nereid_client.tools.replay.rules import Rules, without
from nereid_client.tools.replay.wire import Outputs

RESPONSES: Final = "(responses)"
"""In place of an output: how many responses there are."""
_LISTED: Final = 10_000
"""Rows that differ which are named in full."""


class Expected(NamedTuple):
    """What a row is to be answered with.

    Attributes:
        answer: a failure if there was one.
        cut: more responses may have come.
    """

    answer: Answer
    cut: bool = False


class Differing(NamedTuple):
    """A row whose answer is outside of its rules, or is missing."""

    model: str
    key: str
    id: str
    why: str


@dataclass
class Differences:
    """The rows of a replay: what was compared, by model, and what could not be.

    Attributes:
        rules: by which they were compared.
        late: the load generator was: what was not answered in time may be its fault.
        rows: those that differ, at most so many.
        more: how many more there are.
        apart: rows that were not compared, by the reason.
    """

    rules: Rules
    late: bool = False
    models: dict[str, Comparison] = field(default_factory=dict)
    rows: list[Differing] = field(default_factory=list)
    more: int = 0
    apart: Counter[str] = field(default_factory=Counter)

    @property
    def compared(self) -> int:
        """Rows that were answered and compared."""
        return sum(each.compared for each in self.models.values())

    @property
    def differing(self) -> int:
        """Rows outside of their rules, and those that were not answered."""
        return len(self.rows) + self.more

    def add(self, row: Planned, expected: Expected, answer: Answer | None) -> None:
        """Compare what a row was answered with."""
        why = _apart(expected.answer, answer)
        if not why and self.late and isinstance(answer, Failed) and not answer.reached:
            why = "no answer in time, while the generator was late"
        if why:
            self.apart[why] += 1
            return
        assert not isinstance(expected.answer, Failed) and answer is not None
        comparison = self.models.get(row.model)
        if comparison is None:
            comparison = self.models[row.model] = Comparison(self.rules.of(row.model))
        if isinstance(answer, Failed):
            comparison.fail(_name(row), f"failed: {answer.text}")
            self._note(row, f"failed: {answer.text}")
            return
        found = compared(comparison.rules, expected.answer, answer, expected.cut)
        if found is None:
            self.apart["its outputs were not kept on the tape"] += 1
            return
        comparison.count(_name(row), found)
        if found.bad:
            self._note(row, str(found))

    def _note(self, row: Planned, why: str) -> None:
        if len(self.rows) < _LISTED:
            self.rows.append(Differing(row.model, row.key, row.id, why))
        else:
            self.more += 1


def _name(row: Planned) -> str:
    return f"{row.id} ({row.key})" if row.id else row.key


def _apart(expected: Answer, answer: Answer | None) -> str:
    """Return why there is nothing to compare; "" if there is."""
    if answer is None:
        return "not sent: the run ended before"
    if isinstance(expected, Failed):
        return f"failed before, {'failed again' if isinstance(answer, Failed) else 'answered now'}"
    return "" if expected else "no answer on the tape"


def compared(
    rules: ComparisonRules, expected: Sequence[Outputs], answer: Sequence[Outputs], cut: bool
) -> Compared | None:
    """Compare all responses to a request; None if nothing of what is expected was kept.

    Args:
        cut: the expected responses are the first ones; more may follow.
    """
    found: list[OutputDifference] = []
    kept = ignored = False
    for one, other in zip(expected, answer, strict=False):
        lost = {tensor.name for tensor in one if tensor.state != KEPT}
        kept |= len(lost) < len(one)
        sides = ([tensor for tensor in side if tensor.name not in lost] for side in (one, other))
        each = compare(rules, *sides)
        found += each.outputs
        ignored |= each.ignored
    enough = len(answer) >= len(expected) if cut else len(answer) == len(expected)
    if not enough and rules.rule(RESPONSES) != "ignore":
        fewer = len(answer) < len(expected)
        found.append(OutputDifference(RESPONSES, "missing" if fewer else "unexpected", MOST, within=0.0))
    return Compared(tuple(found), ignored) if kept or found else None


def recorded(row: Row) -> Expected:
    """Return what a row of a tape was answered with."""
    failure = next((each for each in row.responses if each.code), None)
    if failure is not None:
        return Expected(Failed(f"{failure.code}: {failure.error}", True))
    cut = TRUNCATED in row.flags or "cancelled" in row.flags
    return Expected([each.outputs for each in row.responses if each.outputs], cut)


@dataclass(frozen=True)
class Noise:
    """What two right answers to the same requests differ by.

    Attributes:
        rows: that were asked for twice and answered.
        refused: by model, outputs whose rule is tighter than that, with the reason.
        largest: by model and output, the largest difference of two elements.
    """

    rows: int
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    largest: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def rules(self, rules: Rules, models: Sequence[str]) -> Rules:
        """Return rules by which what is refused is not compared."""
        own = {name: without(rules.of(name), frozenset(self.refused.get(name, ()))) for name in models}
        return Rules(rules.others, own)

    def sentences(self) -> Iterator[str]:
        """Yield what was refused, and why."""
        for model, outputs in self.refused.items():
            for output, why in outputs.items():
                yield f"{model}: the rule of '{output}' is tighter than the noise: {why}"


Twice = Callable[[int], tuple[Answer | None, Answer | None]]
"""Returns the two answers to the row of a number."""


def noise_of(plan: Plan, rules: Rules, twice: Twice) -> Noise:
    """Compare two answers to each row of a plan, both of which are right."""
    found = Differences(rules)
    for number, row in enumerate(plan.rows):
        first, second = twice(number)
        if isinstance(first, list) and isinstance(second, list):
            found.add(row, Expected(first), second)
    refused: dict[str, dict[str, str]] = {}
    for model, comparison in found.models.items():
        for output, counts in comparison.outputs.items():
            if number := counts.faults.total():
                by = f", by up to {counts.absolute:.3g}" if counts.absolute else ""
                refused.setdefault(model, {})[output] = (
                    f"{number} of {counts.compared} answers differ{by} from those of the same version to the "
                    "same requests"
                )
    largest = {
        model: {output: counts.absolute for output, counts in comparison.outputs.items()}
        for model, comparison in found.models.items()
    }
    return Noise(found.compared, refused, largest)


def as_json(found: Differences) -> dict[str, Any]:
    """Return what was found, for `json.dumps`."""
    return {
        "compared": found.compared,
        "differing": found.differing,
        "not_compared": dict(found.apart),
        "models": {name: _model_json(each) for name, each in found.models.items()},
        "rows": [row._asdict() for row in found.rows],
    }


def _model_json(found: Comparison) -> dict[str, Any]:
    outputs = {
        name: {
            "compared": counts.compared,
            "faults": dict(counts.faults),
            "near_ties": counts.near_ties,
            "largest_difference": counts.absolute,
            "lowest_cosine": counts.cosine,
        }
        for name, counts in found.outputs.items()
    }
    return {
        "compared": found.compared,
        "differing": found.differing,
        "disagreeing": found.disagreeing,
        "near_ties": found.near_ties,
        "failed": dict(found.failed),
        "acceptance": str(found.acceptance()),
        "outputs": outputs,
        "worst": [each._asdict() for each in found.worst],
    }
