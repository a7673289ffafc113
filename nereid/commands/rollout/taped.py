"""What recorded requests have shown of a candidate, for a terminal and a page. Pure."""

from app.core.rollout.report import accepted
from app.core.rollout.status import RolloutStatus
from nereid.commands.columns import columns

Rows = list[tuple[str, str]]


def tape_rows(status: RolloutStatus) -> Rows:
    """Return what is known of the tape: what, and how many or what share; nothing without one."""
    tape = status.tape
    if tape is None:
        return []
    found = tape.accepted or accepted(status.spec, tape.mirror)
    rows = [
        ("repeated", f"{tape.repeated:,} of {tape.rows:,}"),
        ("not as expected", f"{found.bad:,} of {found.total:,}"),
        ("at most", f"{found.bound:.2%} with a confidence of {found.confidence:.4g}"),
        ("allowed", f"{found.allowed * 100:.4g} %"),
        ("near ties", f"{tape.mirror.near_ties:,}"),
    ]
    if not found.accepted:
        rows.append(("inconclusive", f"without {found.missing:,} more rows that are as expected"))
    return rows + [(f"left out, because {why}", f"{count:,}") for why, count in tape.left_out.items()]


def worst_rows(status: RolloutStatus) -> Rows:
    """Return the rows that are furthest from what is expected: id and name on the tape, and why."""
    worst = status.tape.worst if status.tape is not None else ()
    return [(f"{each.id} ({each.row})" if each.id else each.row, each.why) for each in worst]


def tape_lines(status: RolloutStatus) -> list[str]:
    """Return the lines for a terminal, with an empty one behind them."""
    rows, worst = tape_rows(status), worst_rows(status)
    shown = ["recorded requests", *columns(rows).splitlines(), ""] if rows else []
    return [*shown, "the worst of them", *columns(worst).splitlines(), ""] if worst else shown
