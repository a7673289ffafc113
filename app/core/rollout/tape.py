"""Recorded requests that a candidate answers before it gets any of clients, as ingresses repeat them."""

from typing import Final

import msgspec

PARTS: Final = 32
"""Parts into which the rows of a tape are divided; an ingress repeats, and reports, each as a whole."""


class TapeWork(msgspec.Struct, frozen=True):
    """The rows of its node's tape that an ingress repeats.

    Attributes:
        requests: the most, the newest ones.
        until_ns: that arrived before then, since the epoch.
        in_flight: at once.
        speed: times the mean rate at which they arrived; 0: as fast as they are answered.
    """

    requests: int
    until_ns: int
    in_flight: int
    speed: float


class WorstRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A recorded request that the candidate has answered otherwise, or failed.

    Attributes:
        row: what names it on the tape (`nereid tape show --where key=...`).
        id: the client's, "" for none.
        severity: how far it is from its rules.
        why: in words.
    """

    row: str
    id: str
    severity: float
    why: str


class TapeFound(msgspec.Struct, frozen=True):
    """The findings of an ingress on its node's tape.

    Attributes:
        tape: names it; "" if the ingress has none.
        rows: how many of the wanted requests it has.
        parts: bits of those of `PARTS` that have any of them.
        left_out: newer rows that cannot be repeated, by reason.
    """

    tape: str
    rows: int = 0
    parts: int = 0
    left_out: dict[str, int] = {}


class TapePart(msgspec.Struct, frozen=True):
    """A part of a tape all of whose rows were repeated."""

    tape: str
    number: int
    worst: tuple[WorstRow, ...] = ()
