"""What recorded requests have shown of a candidate."""

from typing import Final

import msgspec

from app.core.rollout.outcomes import MirrorOutcomes
from app.core.rollout.tape import TapeFound, TapePart, WorstRow
from nereid_client.comparison.acceptance import Acceptance

MOST_WORST: Final = 10
_MOST_REASONS: Final = 8


class Taped(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one tape: see `TapeFound`; `done` are bits of the parts that are counted."""

    rows: int = 0
    parts: int = 0
    done: int = 0
    left_out: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        """Whether all parts are counted."""
        return self.parts & ~self.done == 0


class TapeEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the tape says of a candidate.

    Attributes:
        tapes: by their names, one for each node that has one.
        asked: whether an ingress has answered, if only that it has none.
        mirror: the answers so far.
        worst: those that are furthest from what is expected.
        accepted: whether that shows that the candidate is right; once it is decided.
        decided: what was decided, in words; "" while rows are being repeated.
    """

    tapes: dict[str, Taped] = {}
    asked: bool = False
    mirror: MirrorOutcomes = msgspec.field(default_factory=MirrorOutcomes)
    worst: tuple[WorstRow, ...] = ()
    accepted: Acceptance | None = None
    decided: str = ""

    @property
    def rows(self) -> int:
        """Requests that were found."""
        return sum(tape.rows for tape in self.tapes.values())

    @property
    def repeated(self) -> int:
        """Requests that the candidate has answered or failed."""
        return self.mirror.compared + self.mirror.failed

    @property
    def complete(self) -> bool:
        """Whether all that was found was repeated."""
        return self.asked and all(tape.complete for tape in self.tapes.values())

    @property
    def left_out(self) -> dict[str, int]:
        """Rows that cannot be repeated, by the most frequent reasons."""
        found: dict[str, int] = {}
        for tape in self.tapes.values():
            for why, count in tape.left_out.items():
                found[why] = found.get(why, 0) + count
        return dict(sorted(found.items(), key=lambda item: -item[1])[:_MOST_REASONS])

    def has(self, part: TapePart) -> bool:
        """Return whether a part is counted already."""
        known = self.tapes.get(part.tape)
        return known is not None and bool(known.done >> part.number & 1)

    def after_look(self, found: TapeFound) -> "TapeEvidence":
        """Return the evidence with what an ingress has found."""
        if not found.tape:
            return msgspec.structs.replace(self, asked=True)
        done = self.tapes.get(found.tape, Taped()).done
        tape = Taped(found.rows, found.parts, done, found.left_out)
        return msgspec.structs.replace(self, asked=True, tapes={**self.tapes, found.tape: tape})

    def after_part(self, part: TapePart, mirror: MirrorOutcomes) -> "TapeEvidence":
        """Return the evidence with a part that was repeated."""
        known = self.tapes.get(part.tape, Taped())
        tape = msgspec.structs.replace(known, done=known.done | 1 << part.number)
        worst = sorted((*self.worst, *part.worst), key=lambda each: (-each.severity, each.row))
        return msgspec.structs.replace(
            self,
            asked=True,
            tapes={**self.tapes, part.tape: tape},
            mirror=self.mirror + mirror,
            worst=tuple(worst[:MOST_WORST]),
        )
