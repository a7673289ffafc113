"""What a replay means: its exit status, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from nereid_client.comparison.counts import Comparison
from nereid_client.tools.replay.session import Outcome

EQUAL, DIFFERS, WRONG_COMMAND, WORSE, VOID = range(5)
_WORDS: Final = {EQUAL: "equal", DIFFERS: "differs", WORSE: "slower", VOID: "void"}


class Verdict(NamedTuple):
    """The exit status, in words, and sentences for it."""

    status: int
    word: str
    why: tuple[str, ...]


def verdict(outcome: Outcome) -> Verdict:
    """Return what a replay means: differences come before latencies, these before what is void."""
    bad: list[str] = []
    doubtful = list(_void(outcome))
    for model, comparison in outcome.differences.models.items():
        differs, text = _judged(comparison)
        if text:
            (bad if differs else doubtful).append(f"{model}: {text}")
    slow = [
        f"{figure.name} is {figure.ratio:.2f} times ({figure.low:.2f} to {figure.high:.2f}) what it was"
        for figure in outcome.latencies.figures
        if figure.verdict == "worse"
    ]
    status = DIFFERS if bad else WORSE if slow else VOID if doubtful else EQUAL
    return Verdict(status, _WORDS[status], (*bad, *slow, *doubtful))


def _judged(found: Comparison) -> tuple[bool, str]:
    """Return whether answers differ by more than their rules allow, and what is to be said of them."""
    wrong, failed = found.bad, found.failed.total()
    text = f"{wrong} of {found.compared} answers differ" if wrong else ""
    if failed:
        text = f"{text}{', ' if text else ''}{failed} requests failed that had been answered"
    if found.rules.min_agreement is None:
        if not text and found.compared and found.near_ties == found.compared:
            return False, "inconclusive: no answer has anything compared that is clear of the margin"
        return bool(text), text
    accepted = found.acceptance()
    if accepted.accepted:
        return False, ""
    total = max(accepted.total, 1)
    return accepted.bad / total > accepted.allowed, str(accepted)


def _void(outcome: Outcome) -> Iterator[str]:
    """Yield why a replay does not say what it was to say."""
    if outcome.noise is not None:
        yield from outcome.noise.sentences()
    for name, ran in (("the replay", outcome.now), ("the other server's run", outcome.then)):
        if ran is None:
            continue
        if outcome.options.speed and ran.result.void:
            yield f"{name} was not in time: {ran.result.void}"
        if ran.cut:
            yield f"{name} ended before all requests were sent"
    if not outcome.differences.compared:
        yield "no answer could be compared"
