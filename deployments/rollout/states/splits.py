"""How tables split the requests of a rollout. Pure."""

from app.core.rollout.split import WHOLE, Split
from deployments.rollout.states import machine, taping
from deployments.rollout.states.record import Record


def split_of(record: Record) -> Split:
    """Return how tables split the requests of a rollout that is on."""
    status, spec = record.status, record.status.spec
    given = (machine.judged(record) or record.reloading) and not taping.is_taping(record)
    mirrored = given and not machine.promoted(record)
    return Split(
        status.rollout,
        record.name,
        status.stable,
        status.candidate,
        step=status.step,
        weight=machine.weight(record),
        mirror=round(spec.mirror * WHOLE / 100) if mirrored else 0,
        sticky=spec.sticky,
        salt=record.salt,
        match=spec.match if given else (),
        stable_on_error=spec.on_error == "stable",
        state=status.state.value,
        comparison=machine.comparison(record),
        held_back=machine.promoted(record),
        hang_seconds=spec.hang_seconds,
        tape=taping.work(record),
        classes=spec.judge.drift.output or "*" if spec.judge.drift else "",
    )
