"""What `nereid rollout` shows of recorded requests."""

from app.core.rollout.outcomes import MirrorOutcomes
from app.core.rollout.spec import RolloutSpec, TapeRules
from app.core.rollout.status import RolloutState
from app.core.rollout.tape import WorstRow
from app.core.rollout.tape_evidence import Taped, TapeEvidence
from nereid.commands.rollout.page import page
from nereid.commands.rollout.taped import tape_lines
from nereid.commands.rollout.text import comparison, screen
from tests.unit.app.rollout_fakes import STARTED, rollout

EVIDENCE = TapeEvidence(
    {"node": Taped(rows=500, parts=3, done=1, left_out={"it was not answered": 4})},
    True,
    MirrorOutcomes(300, differing=2, near_ties=10),
    (WorstRow("ab-7", "c7", 9.0, "y: values"), WorstRow("ab-9", "", 2.0, "<broken>")),
)


def test_the_state_its_evidence_and_the_worst_rows_are_shown() -> None:
    status = rollout(
        state=RolloutState.TAPE, tape=EVIDENCE, spec=RolloutSpec(tape=TapeRules()), since=STARTED, percent=0.0
    )
    lines = screen(status, STARTED + 20)
    assert "identity, version 1 -> 2: tape, for 20 s" in lines[0]
    assert tape_lines(status) == [
        "recorded requests",
        "repeated                               300 of 500",
        "not as expected                        2 of 290",
        "at most                                2.87% with a confidence of 0.99",
        "allowed                                1 %",
        "near ties                              10",
        "inconclusive                           without 548 more rows that are as expected",
        "left out, because it was not answered  4",
        "",
        "the worst of them",
        "c7 (ab-7)  y: values",
        "ab-9       <broken>",
        "",
    ]
    assert lines[-1] == "next: the first requests, when recorded ones are answered, in 4 min 40 s at most"
    assert "the worst of them" in comparison(status)
    shown = page(status, STARTED + 20)
    assert "Recorded requests" in shown and "&lt;broken&gt;" in shown and "c7 (ab-7)" in shown


def test_without_a_tape_nothing_is_shown() -> None:
    assert tape_lines(rollout()) == [] and "Recorded requests" not in page(rollout(), STARTED)
