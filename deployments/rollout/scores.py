"""The scores of models in a rollout, as ingresses report them, and what the judge makes of them."""

import math
import secrets
from collections.abc import Collection
from typing import Final

import msgspec

from app.core.feedback.figures import Scores
from app.core.feedback.reports import ScoreReport, SlotScores
from app.core.identifiers import name_of
from app.core.rollout.status import Verdict
from deployments.rollout.judging import scores as judging
from deployments.rollout.judging.scores import Compared, Pair
from deployments.rollout.states.record import Record

SLOT_S: Final = 60
MAX_SLOTS: Final = 200_000
"""Sums of minutes, over all models and nodes; the oldest go first."""
_RULE: Final = "score"

_Key = tuple[str, int, str, str]
"""Model, minute, version, node."""


class ScoreBoard:
    """Adds up what the nodes report. It is empty after a start, and told everything again.

    Attributes:
        name: of this one, by which reporters know that they have to.
    """

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self._slots: dict[_Key, SlotScores] = {}
        self._compared: dict[str, tuple[str, Compared]] = {}

    def add(self, report: ScoreReport) -> None:
        """Take a report; one that is older than what is known changes nothing."""
        for each in report.slots:
            key = each.model, each.slot, each.version, report.node
            known = self._slots.get(key)
            if known is None or known.change < each.change:
                self._slots[key] = each
            self._compared.pop(each.model, None)
        while len(self._slots) > MAX_SLOTS:
            del self._slots[next(iter(self._slots))]

    def follow(self, names: Collection[str]) -> None:
        """Forget models other than these, by their identifiers."""
        models = {name_of(name) for name in names}
        self._compared = {model: each for model, each in self._compared.items() if model in models}
        if any(key[0] not in models for key in self._slots):
            self._slots = {key: each for key, each in self._slots.items() if key[0] in models}

    def judged(self, record: Record, verdict: Verdict) -> Verdict:
        """Return a verdict with what the rule `score` says of a rollout, if it has one."""
        rule, status = record.status.spec.judge.score, record.status
        if rule is None:
            return verdict
        compared = self._compare(record)
        found = judging.worse(compared, rule.allowed_drop)
        alarms = verdict.alarms
        if found > -math.log(1 - status.spec.judge.confidence):
            alarms = (*alarms, judging.alarm(rule, compared))
        evidence = {**verdict.evidence, _RULE: math.exp(found)}
        holds = judging.holds(rule, compared)
        return msgspec.structs.replace(verdict, alarms=alarms, evidence=evidence, holds=holds)

    def _compare(self, record: Record) -> Compared:
        """Compare the versions, anew once there is more to compare: a rollout may last for weeks."""
        model = name_of(record.name)
        rollout, compared = self._compared.get(model, ("", Compared()))
        if rollout != record.status.rollout:
            compared = judging.compare(self.pairs(record))
            self._compared[model] = record.status.rollout, compared
        return compared

    def pairs(self, record: Record) -> list[Pair]:
        """Return the scores of both versions by minute since the rollout began, over all nodes."""
        status, model = record.status, name_of(record.name)
        versions = str(status.stable), str(status.candidate)
        found: dict[int, dict[str, Scores]] = {}
        for (name, slot, version, _), each in self._slots.items():
            if name == model and version in versions and (slot + 1) * SLOT_S > status.started:
                minute = found.setdefault(slot, dict.fromkeys(versions, Scores()))
                minute[version] += each.scores
        return [Pair(minute[versions[0]], minute[versions[1]]) for minute in found.values()]
