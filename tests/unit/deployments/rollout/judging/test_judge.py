import math
from typing import Any

import msgspec
import pytest

from app.core.rollout.outcomes import MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.spec import ErrorRule, JudgeRules, OutputRules
from app.core.rollout.status import Verdict
from deployments.rollout.judging.intervals import Intervals
from deployments.rollout.judging.judge import Sample, evidence, excess, judge
from deployments.rollout.judging.odds import Odds, Shares

FAST = {40: 950, 44: 50}
"""Most take 1 ms, a few 2 ms."""


def outcomes(candidate: VersionOutcomes, stable: VersionOutcomes | None = None) -> Outcomes:
    return Outcomes(stable or VersionOutcomes(ok=1000, latencies=FAST), candidate)


def judged(rules: JudgeRules, *reports: Outcomes) -> Verdict:
    """The verdict on a step, each of whose reports is an interval."""
    intervals = Intervals()
    for report in reports:
        intervals = intervals.add("", report).judged(rules)
    return judge(rules, sum(reports, Outcomes()), intervals)


def mirrored(rules: OutputRules, **counts: Any) -> Verdict:
    return judge(JudgeRules(output=rules), Outcomes(mirror=MirrorOutcomes(**counts)))


def test_verdict_on_nothing_says_what_it_waits_for() -> None:
    verdict = judge(JudgeRules(output=OutputRules(min_agreement=0.9)), Outcomes())
    assert verdict.alarms == ()
    assert verdict.detectable == 1
    assert verdict.waiting == (
        "a request of the candidate and 20 answers of the stable version beside one of the candidate's, for"
        " latencies and a mirrored request, to compare outputs"
    )


def test_verdict_on_a_sound_candidate_gives_no_alarm_and_its_power() -> None:
    verdict = judge(JudgeRules(), outcomes(VersionOutcomes(ok=998, failed=2, latencies=FAST)))
    assert verdict == Verdict(
        evidence={"errors": 0.0}, detectable=verdict.detectable, waiting=verdict.waiting
    )
    assert verdict.detectable == pytest.approx(0.0368, abs=0.001)


def test_failures_of_the_candidate_alone_are_an_alarm_with_its_figures() -> None:
    verdict = judged(JudgeRules(latency=None), outcomes(VersionOutcomes(ok=120, failed=30)))
    assert verdict.alarms == (
        "errors: 30 of 150 (20.00%) of the candidate's requests failed, of the stable version's"
        " 0 of 1,000 (0.00%); allowed are 1 %",
    )
    assert verdict.evidence["errors"] > 1000


def test_failures_of_both_versions_are_not_the_candidates_fault() -> None:
    half = VersionOutcomes(ok=500, failed=500)
    assert judged(JudgeRules(), outcomes(half, half)).alarms == ()


def test_failures_are_compared_with_those_of_the_same_time() -> None:
    """The candidate has most requests of the bad time, and had few of the good time before."""
    rules = JudgeRules(latency=None)
    before = Outcomes(VersionOutcomes(ok=100_000), VersionOutcomes(ok=1000))
    bad = Outcomes(VersionOutcomes(ok=5, failed=5), VersionOutcomes(ok=500, failed=500))
    verdict = judged(rules, before, *[bad] * 20)
    assert verdict.alarms == () and verdict.evidence["errors"] < 1


def test_a_candidate_that_is_left_alone_with_the_requests_is_judged_by_the_budget() -> None:
    alone = Outcomes(candidate=VersionOutcomes(ok=60, failed=40))
    assert judged(JudgeRules(), outcomes(VersionOutcomes(ok=100)), alone).alarms == ()
    assert judged(JudgeRules(), outcomes(VersionOutcomes(ok=100)), alone, alone).alarms


def test_requests_that_both_versions_refuse_are_their_clients_fault() -> None:
    bad = VersionOutcomes(ok=100, refused=900)
    assert judged(JudgeRules(), outcomes(bad, bad)).alarms == ()


def test_requests_that_the_candidate_alone_refuses_are_an_alarm() -> None:
    verdict = judged(JudgeRules(latency=None), outcomes(VersionOutcomes(ok=100, refused=20)))
    assert verdict.alarms == (
        "refusals: 20 of 120 (16.67%) of the candidate's requests were refused, of the stable version's"
        " 0 of 1,000 (0.00%); allowed are 1 % more",
    )
    assert judged(JudgeRules(errors=None), outcomes(VersionOutcomes(ok=100, refused=20))).alarms == ()


def test_late_requests_are_an_alarm_after_a_dozen_intervals() -> None:
    report = Outcomes(VersionOutcomes(prompt=190), VersionOutcomes(late=10))
    assert judged(JudgeRules(), *[report] * 11).alarms == ()
    (alarm,) = judged(JudgeRules(), *[report] * 13).alarms
    assert alarm == (
        "late: 130 of 130 (100.00%) of the candidate's requests were not answered after ten times the stable"
        " version's 0.99 quantile, of the stable version's 0.00%; allowed are 2 % more"
    )
    both = Outcomes(VersionOutcomes(prompt=95, late=95), VersionOutcomes(prompt=5, late=5))
    assert judged(JudgeRules(), *[both] * 100).alarms == ()
    assert judged(JudgeRules(latency=None), *[report] * 100).alarms == ()


def test_failures_are_judged_by_the_budget_alone_without_a_stable_version() -> None:
    assert judge(JudgeRules(), outcomes(VersionOutcomes(failed=20), VersionOutcomes())).alarms


def test_mirrored_failures_are_an_alarm_at_weight_0() -> None:
    (alarm,) = mirrored(OutputRules(), compared=80, failed=20).alarms
    assert alarm.startswith("errors: the candidate failed 20 of 100 (20.00%) mirrored requests")


def test_rules_that_are_off_are_not_judged() -> None:
    bad = VersionOutcomes(failed=500, latencies={80: 500})
    assert judge(JudgeRules(errors=None, latency=None), outcomes(bad)) == Verdict()


def test_outputs_that_differ_are_judged_by_the_limits_that_are_given() -> None:
    assert mirrored(OutputRules(), compared=100, differing=50, disagreeing=50).alarms == ()
    assert judge(JudgeRules(output=None), Outcomes(mirror=MirrorOutcomes(100, 100))).alarms == ()
    (alarm,) = mirrored(OutputRules({"y": "exact"}), compared=100, differing=20, max_difference=0.25).alarms
    assert alarm == (
        "output: 20 of 100 (20.00%) mirrored answers are not as expected: 20 by their values (up to 0.25), "
        "0 by which one is largest; allowed are 1 %"
    )
    (alarm,) = mirrored(OutputRules(min_agreement=0.9), compared=110, near_ties=10, disagreeing=40).alarms
    assert alarm.startswith("output: 40 of 100 (40.00%) mirrored") and alarm.endswith("allowed are 10 %")
    assert mirrored(OutputRules(min_agreement=0.9), compared=100, disagreeing=12).alarms == ()


def test_one_disagreement_is_an_alarm_if_none_is_allowed() -> None:
    assert mirrored(OutputRules(min_agreement=1.0), compared=100).alarms == ()
    assert mirrored(OutputRules(min_agreement=1.0), compared=100, disagreeing=1).alarms


def test_verdict_is_valid_json_whatever_the_evidence() -> None:
    verdict = judge(JudgeRules(), outcomes(VersionOutcomes(failed=1_000_000)))
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_evidence_is_that_of_the_mixture() -> None:
    """B(2.5, 0.5) / B(0.5, 0.5) = 3/8 for 2 of 2."""
    assert evidence(Sample(2, 2), 0.5) == pytest.approx(3 / 8 * 4)
    assert evidence(Sample(1, 2), 0.5) == 0
    assert evidence(Sample(0, 0), 0.5) == 0


def test_excess_over_the_budget_counts_only_if_it_is_over_the_stable_version_too() -> None:
    ours = Sample(50, 1000)
    alike, worse = (Odds().after(Shares(50, 1000, bad, 1000)) for bad in (50, 0))
    assert excess(ours, 0.01, alike) < 1 and excess(ours, 0.06, worse) == 0
    assert excess(ours, 0.01, worse) > 1000


def test_evidence_of_odds_is_the_likelihood_averaged_over_them() -> None:
    """One bad request, the candidate's, at half of the requests: twice odds / (1 + odds)."""
    odds = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
    found = Odds().after(Shares(1, 10, 0, 10))
    assert math.exp(found.log_evidence) == pytest.approx(sum(2 * each / (1 + each) for each in odds) / 8)
    for nothing in (Shares(0, 10, 0, 10), Shares(9, 9, 0, 0), Shares(0, 0, 9, 9)):
        assert found.after(nothing) == found


def test_confidence_sets_the_evidence_that_an_alarm_needs() -> None:
    suspect = outcomes(VersionOutcomes(ok=95, failed=5))
    level = judged(JudgeRules(), suspect).evidence["errors"]
    assert 2 < level < 1000
    assert judged(JudgeRules(errors=ErrorRule(), confidence=1 - 1.1 / level), suspect).alarms
    assert not judged(JudgeRules(errors=ErrorRule(), confidence=1 - 0.9 / level), suspect).alarms
