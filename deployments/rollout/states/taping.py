"""The state `tape` of a rollout: the candidate answers recorded requests before it gets any of clients. Pure.

The functions of `machine` that lead there or away from there are wrapped here.
"""

from typing import Final

import msgspec

from app.core.rollout.outcomes import StepOutcomes
from app.core.rollout.report import accepted
from app.core.rollout.spec import TapeRules
from app.core.rollout.status import RolloutState
from app.core.rollout.tape import TapeWork
from app.core.rollout.tape_evidence import TapeEvidence
from deployments.rollout.judging.judge import Sample, evidence
from deployments.rollout.states import machine
from deployments.rollout.states.record import NEREID, Record
from nereid_client.comparison.acceptance import Acceptance

LOOK_S: Final = 5.0
"""Seconds in which all ingresses have said what is on their tapes."""
_WRITTEN_S: Final = 2.0
"""Rows that are older are on the tape: each ingress of a node that reads it finds the same ones."""


def is_taping(record: Record) -> bool:
    """Whether the candidate answers nothing but recorded requests, or is paused there."""
    return RolloutState.TAPE in (record.status.state, record.status.resumes)


def work(record: Record) -> TapeWork | None:
    """Return what ingresses are to repeat now."""
    status = record.status
    rules = status.spec.tape
    if rules is None or status.state is not RolloutState.TAPE:
        return None
    speed = 0.0 if rules.speed == "max" else rules.speed
    return TapeWork(rules.requests, int((status.since - _WRITTEN_S) * 1e9), rules.in_flight, speed)


def loaded(record: Record, now: float, missing: str = "", differs: str = "") -> Record:
    """Go on from `loading`, see `machine.loaded`: first with the tape, if the policy has one."""
    resumes, pause = record.status.resumes, record.pause
    due = record.status.spec.tape is not None and resumes in (None, RolloutState.TAPE)
    if record.alone or not due:
        return machine.loaded(record, now, missing, differs)
    why = f"loaded; of another configuration: {differs}" if differs else "loaded"
    seen = record.status.tape if pause else None
    begun = machine.with_status(_begun(record, now, NEREID, why), tape=seen or TapeEvidence())
    return machine.paused(msgspec.structs.replace(begun, pause=""), pause, now) if pause else begun


def _begun(record: Record, now: float, who: str, why: str) -> Record:
    """Begin to repeat the tape; the weight that a person gave comes after it."""
    at = machine.moved(record, RolloutState.TAPE, now, who, why, 0.0)
    at = machine.with_status(at, resumes=None, tape=TapeEvidence())
    return msgspec.structs.replace(at, first=record.first)


def resumed(record: Record, now: float, who: str) -> Record:
    """Go on where the rollout was paused: behind the tape if that has been judged, else at its beginning."""
    status = record.status
    if status.resumes is not RolloutState.TAPE:
        return machine.resumed(record, now, who)
    if status.tape is None or not status.tape.decided:
        return _begun(record, now, who, "resumed")
    percent = machine.first_percent(record)
    return machine.with_status(machine.weighted(record, percent, now, who, "resumed"), resumes=None)


def counted(record: Record, step: StepOutcomes, now: float, source: str = "") -> Record:
    """Add what an ingress (`source`) counted, see `machine.counted`; each part of a tape once."""
    tape = record.status.tape
    if step.found is None and step.part is None:
        return machine.counted(record, step.step, step.outcomes, now, source)
    if tape is None or record.status.state is not RolloutState.TAPE or step.step != record.status.step:
        return record
    if step.found is not None:
        return machine.with_status(record, tape=tape.after_look(step.found))
    assert step.part is not None
    if tape.has(step.part):
        return record
    status, outcomes = record.status, step.outcomes
    return machine.with_status(
        record,
        outcomes=status.outcomes + outcomes,
        total=status.total + outcomes,
        tape=tape.after_part(step.part, outcomes.mirror),
    )


def ticked(record: Record, now: float) -> Record:
    """Go on as time, counters and verdict say, see `machine.ticked`."""
    status = record.status
    rules, tape = status.spec.tape, status.tape
    if status.state is not RolloutState.TAPE or status.verdict.alarms or rules is None or tape is None:
        return machine.ticked(record, now)
    elapsed = now - status.since
    if elapsed < rules.max_seconds and not (tape.complete and elapsed >= LOOK_S):
        return record
    return _decided(record, rules, tape, now)


def _decided(record: Record, rules: TapeRules, tape: TapeEvidence, now: float) -> Record:
    """Go on behind the tape, or pause, by what it has shown."""
    status = record.status
    found = accepted(status.spec, tape.mirror)
    output = status.spec.judge.output
    given = output is None or output.given
    differs = not given and _is_alarm(record, found)
    text = f"tape: {_missing(tape)}{found}"
    if differs:
        text += (
            f". Expected were version {status.stable}'s answers: judge.output says what may differ"
            " (null: all), 'resume' goes on"
        )
    noted = machine.with_status(
        record, tape=msgspec.structs.replace(tape, accepted=found, decided=text[: machine.MAX_WHY])
    )
    if differs or (rules.required and not found.accepted):
        return machine.paused(noted, text, now)
    return machine.weighted(noted, machine.first_percent(noted), now, NEREID, text)


def _is_alarm(record: Record, found: Acceptance) -> bool:
    """Return whether the answers speak against the candidate as an alarm would."""
    limit = 1 / (1 - record.status.spec.judge.confidence)
    return evidence(Sample(found.bad, found.total), found.allowed) > limit


def _missing(tape: TapeEvidence) -> str:
    """Return what was not repeated, and why."""
    if not tape.tapes:
        return "no ingress has one; "
    left = [f"{count:,} because {why}" for why, count in tape.left_out.items()]
    parts = [f"{tape.repeated:,} of {tape.rows:,} rows were repeated"] if tape.repeated < tape.rows else []
    parts += [f"left out were {', '.join(left)}"] if left else []
    return "".join(f"{part}; " for part in parts)


def waiting(record: Record) -> str:
    """Say what is still to be awaited in this state."""
    tape = record.status.tape
    if tape is None or not tape.asked:
        return "what is on the tape"
    return f"{tape.rows - tape.repeated:,} of {tape.rows:,} recorded requests"
