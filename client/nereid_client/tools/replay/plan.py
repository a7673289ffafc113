"""Which rows of a tape are repeated, and when each begins. Pure, but for reading the tape."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import Row
from nereid_client.tools.perf.generator.arrivals import Offsets
from nereid_client.tools.replay.options import Options, ReplayError

CUT: Final = "a step of a sequence whose beginning is not there"
_BROKEN: Final = "a step behind one of its sequence that cannot be repeated"


class Planned(NamedTuple):
    """A row that may be repeated, without its tensors.

    Attributes:
        model: as recorded.
        version: that answered; "" for none.
        sequence: number of its sequence in this plan; -1 for none.
        latency_ns: to its last response; 0 if it failed or was cut off.
        streams: it had another number of responses than one.
        ends: it is the end of its sequence.
    """

    key: str
    id: str
    model: str
    version: str
    asked: str
    arrived_ns: int
    sequence: int
    latency_ns: int
    failed: bool
    streams: bool
    ends: bool = False


@dataclass
class Plan:
    """The rows to repeat, in the order of their arrival; `skipped` counts the others by the reason."""

    rows: list[Planned]
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def models(self) -> list[str]:
        """The models of the rows, as recorded."""
        return list(dict.fromkeys(row.model for row in self.rows))

    @property
    def seconds(self) -> float:
        """From the arrival of the first row to that of the last."""
        return (self.rows[-1].arrived_ns - self.rows[0].arrived_ns) / 1e9 if self.rows else 0.0

    def unfinished(self) -> frozenset[int]:
        """Return the numbers of the last steps of sequences whose end is not among the rows."""
        last = {row.sequence: number for number, row in enumerate(self.rows) if row.sequence >= 0}
        return frozenset(number for number in last.values() if not self.rows[number].ends)

    def leave(self, model: str, why: str) -> None:
        """Repeat no row of a model."""
        kept = [row for row in self.rows if row.model != model]
        self.skipped[why] += len(self.rows) - len(kept)
        self.rows = kept

    def moments(self, speed: float) -> Offsets:
        """Return when each row begins at a speed, in nanoseconds after the first."""
        arrived = np.array([row.arrived_ns for row in self.rows], np.int64)
        return ((arrived - arrived[:1]) / speed).astype(np.int64)


def read_plan(tape: Tape, options: Options) -> Plan:
    """Read which rows there are, of the newest so many.

    Raises:
        TapeError: the tape cannot be read.
        ReplayError: no row can be repeated.
    """
    heads: deque[Row] = deque(maxlen=options.rows)
    chosen = 0

    for row in tape.rows(options.where, bodies=False):
        chosen += 1
        heads.append(row)
    found = plan_of(heads)
    if chosen > len(heads):
        found.skipped[f"older than the newest {options.rows} (--rows)"] = chosen - len(heads)
    if damaged := sum(tape.damaged.values()):
        found.skipped["damaged on the disk, or missing there"] = damaged
    for why in tape.unreadable.values():
        found.skipped[f"a whole file: {why}"] += 1
    if not found.rows:
        raise ReplayError(none_left(tape, found.skipped))
    return found


def none_left(tape: Tape, skipped: Mapping[str, int]) -> str:
    """Return the sentence for a tape of which no row can be repeated."""
    told = [f"{number} times: {reason}" for reason, number in skipped.items()]
    return f"no row of '{tape.path}' can be repeated: {'; '.join(told) or 'none was chosen'}"


def plan_of(rows: Sequence[Row] | deque[Row]) -> Plan:
    """Return which of these rows, in the order of their arrival, are repeated."""
    plan = Plan([])
    open_sequences: dict[tuple[str, int | str], int] = {}
    numbers = 0
    for row in rows:
        number = -1
        if row.sequence_id:
            name = row.model, row.sequence_id
            if row.sequence_start:
                open_sequences[name], numbers = numbers, numbers + 1
            if name not in open_sequences:
                plan.skipped[CUT] += 1
                continue
            number = open_sequences[name]
        if why := _BROKEN if number == _NONE else row.why_not:
            plan.skipped[why] += 1
            if row.sequence_id:
                open_sequences[name] = _NONE
            continue
        plan.rows.append(_planned(row, number))
        if row.sequence_end:
            open_sequences.pop((row.model, row.sequence_id), None)
    return plan


_NONE: Final = -2
"""In place of the number of a sequence that cannot go on."""


def _planned(row: Row, sequence: int) -> Planned:
    answers = sum(1 for each in row.responses if each.outputs)
    return Planned(
        row.key,
        row.id,
        row.model,
        row.version,
        row.asked_version,
        row.arrived_ns,
        sequence,
        0 if row.failed or not row.responses or "cancelled" in row.flags else row.latency_ns,
        row.failed,
        answers != 1 and not row.failed,
        row.sequence_end,
    )


def few(plan: Plan, number: int) -> Plan:
    """Return about so many rows, chosen at random, the same ones each time; sequences whole."""
    units: dict[int, list[Planned]] = {}
    for place, row in enumerate(plan.rows):
        units.setdefault(row.sequence if row.sequence >= 0 else -1 - place, []).append(row)
    groups = list(units.values())
    random.Random(0).shuffle(groups)  # every n-th would be of one model where clients take turns
    taken: list[Planned] = []
    for group in groups:
        if len(taken) + len(group) <= number:
            taken += group
    if not taken:
        taken = min(groups, key=lambda group: len(group))
    return Plan(sorted(taken, key=lambda row: row.arrived_ns))
