"""Rollouts as text for a terminal. Pure."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from app.core.rollout.history import RejectedVersion, RolloutHistory, ServedEvent, rejection_text
from app.core.rollout.outcomes import Outcomes
from app.core.rollout.report import Estimate, RolloutFigures, VersionFigures, accepted, figures, share
from app.core.rollout.status import RolloutEvent, RolloutState, RolloutStatus
from nereid.commands.columns import columns
from nereid.commands.rollout.saved import saving_lines
from nereid.commands.rollout.taped import tape_lines
from nereid_client.tools.digits import four_digits

_BAR: Final = 40
_EVIDENCE_BAR: Final = 20
_FAILURES: Final = 3
_EVENTS: Final = 5
"""Of the history, shown under a status."""


def screen(status: RolloutStatus, now: float) -> list[str]:
    """Return the lines that show what a rollout does now.

    Args:
        status: of the rollout.
        now: Unix seconds.
    """
    return [
        f"{title(status)}: {state(status)}, for {duration(now - status.since)}",
        *_reason(status),
        "",
        f"{_bar(status.percent / 100, _BAR)} {status.percent:g} % to version {status.candidate}"
        f" (steps: {_steps(status)})",
        "",
        *_table(status, figures(_shown(status)), ("0.5", "0.95")),
        "",
        *tape_lines(status),
        *_failures(status),
        *_judgement(status),
        *saving_lines(status.saving),
        *(f"{_clock(event.at)}  {event_text(event)}" for event in status.history[-_EVENTS:]),
        *rejections(status.model, status.rejected),
        "",
        coming(status, now),
    ]


def line(status: RolloutStatus) -> str:
    """Return a line that says what a rollout does now, and what it has counted so far."""
    found = figures(status.total)
    parts = [f"{title(status)}: {state(status)}"]
    for version, figure in ((status.candidate, found.candidate), (status.stable, found.stable)):
        latency = estimate_ms(figure.latency_ms.get("0.95"))
        counts = f"{figure.requests:,} requests, {percent(figure.error_rate)} errors"
        parts.append(f"version {version}: {counts}, p95 {latency}")
    parts += [f"evidence of {rule} {evidence(value)}" for rule, value in status.verdict.evidence.items()]
    return "; ".join([*parts, *_reason(status)])


def comparison(status: RolloutStatus) -> list[str]:
    """Return the lines that compare both versions over the whole rollout."""
    found = figures(status.total)
    return [
        f"{title(status)}: {state(status)}",
        *_reason(status),
        "",
        *_table(status, found, tuple(found.stable.latency_ms or found.candidate.latency_ms)),
        *_mirrored(status),
        "",
        "In parentheses: the interval in which the value lies with 95 %.",
        "",
        *tape_lines(status),
        *_failures(status),
        *_judgement(status),
        *saving_lines(status.saving),
        *(f"{_clock(event.at)}  {event_text(event)}" for event in status.history),
        *rejections(status.model, status.rejected),
    ]


def history_lines(history: RolloutHistory) -> list[str]:
    """Return the lines that show what a model has served, the newest first, and what is rejected."""
    serving = f"version {history.version} answers" if history.version else "no version answers"
    rows = [("when", "what", "by", "why")]
    rows += [
        (_clock(event.at), served_text(event), event.who, event.why) for event in reversed(history.events)
    ]
    return [
        f"{history.model}: {serving} requests without a version",
        "",
        *columns(rows).splitlines(),
        *(["", *told] if (told := saving_lines(history.saving)) else []),
        *rejections(history.model, history.rejected),
    ]


def served_text(event: ServedEvent) -> str:
    """Return what has happened to the versions of a model, and by which evidence."""
    version, other = f"version {event.version}", f"version {event.candidate}"
    match event.what:
        case "started":
            what = f"rollout of {other} started beside {version}"
        case "promoted":
            what = f"{version} promoted"
        case "done":
            what = f"{version} took over"
        case "failed" | "aborted":
            what = f"{other} {event.what}, {version} answers"
        case "rolled back":
            what = f"rolled back from {other} to {version}" if event.candidate else f"back to {version}"
        case "forgotten":
            what = f"rejection of {other} forgotten" if event.candidate else "rejections forgotten"
        case "unloaded":
            what = "unloaded"
        case _:
            what = f"{version} {event.what}"
    found = event.evidence
    if found is None:
        return what
    failed = f"{found.candidate_failed:,} of {found.candidate_requests:,} failed at the candidate"
    return f"{what} ({failed}, {found.stable_failed:,} of {found.stable_requests:,} at the stable version)"


def rejections(model: str, rejected: Sequence[RejectedVersion]) -> list[str]:
    """Return a line for each version that gets no requests."""
    return ["", *(rejection_text(model, each) for each in rejected)] if rejected else []


def forgotten(status: RolloutStatus, version: int | None) -> list[str]:
    """Return the lines that say what `forget` has done; the screen of the last rollout follows them.

    Args:
        status: after it.
        version: that was forgotten; None for all.
    """
    which = "no version is" if version is None else f"version {version} is not"
    return [
        f"{status.model}: {which} rejected any more. The next load takes it as new, at once with",
        f"--model-control-mode=poll; 'nereid rollout start {status.model}' does so now. The last rollout:",
    ]


def title(status: RolloutStatus) -> str:
    """Return the name of a rollout."""
    return f"{status.model}, version {status.stable} -> {status.candidate}"


def state(status: RolloutStatus) -> str:
    """Return what a rollout does, in words."""
    name = status.state.value.replace("_", " ")
    return f"{name} of {status.percent:g} %" if status.state is RolloutState.STEP else name


def failures(status: RolloutStatus) -> list[tuple[str, int]]:
    """Return the most frequent texts of the candidate's failures, and how many requests failed by them."""
    found = _shown(status).candidate.reasons or status.total.candidate.reasons
    return sorted(found.items(), key=lambda item: -item[1])[:_FAILURES]


def coming(status: RolloutStatus, now: float) -> str:
    """Return what comes next, and when."""
    candidate, stable = f"version {status.candidate}", f"version {status.stable}"
    model, after = status.model, now - status.since
    match status.state:
        case RolloutState.LOADING:
            return f"next: the first requests, when {candidate} is loaded"
        case RolloutState.TAPE:
            most = status.spec.tape.max_seconds if status.spec.tape is not None else 0.0
            end = duration(max(most - after, 0.0))
            return f"next: the first requests, when recorded ones are answered, in {end} at most"
        case RolloutState.SHADOW | RolloutState.STEP:
            return f"next: {status.next_percent:g} % {_when(status, after)}"
        case RolloutState.PROMOTED:
            left, held = status.spec.keep_stable_seconds - after, status.spec.holdback
            until = f"; until then it answers {held:g} %" if held else ""
            return f"next: {stable} is unloaded in {duration(left)}, its files stay{until}"
        case RolloutState.PAUSED:
            return f"next: nothing by itself; nereid rollout resume, promote or abort {model}"
        case RolloutState.ROLLING_BACK:
            return f"next: {candidate} is unloaded, its files stay"
        case RolloutState.DONE:
            return f"{stable} is unloaded, its files stay"
    again = f"nereid rollout start {model} --candidate {status.candidate}"
    return f"{candidate} is unloaded, its files stay; it is not tried again until you say so: {again}"


def _when(status: RolloutStatus, after: float) -> str:
    """Return when a step passes, and what becomes of it otherwise."""
    rules = status.spec.step
    seconds, requests = rules.min_seconds - after, rules.min_requests - status.step_requests
    waits = [f"in {duration(seconds)}"] if seconds > 0 else []
    waits += [f"after {requests:,} more requests"] if requests > 0 else []
    what = "rolled back" if status.spec.rollback == "auto" else "paused"
    late = f"paused if it has not passed in {duration(rules.max_seconds - after)}"
    return f"{' and '.join(waits) or 'at once'}, if nothing is wrong; {what} by an alarm, {late}"


def percent(estimate: Estimate | None) -> str:
    """Return a share as "1 % (0.5-1.8)"."""
    if estimate is None:
        return "-"
    value, low, high = (100 * share for share in (estimate.value, estimate.low, estimate.high))
    return f"{value:.3g} % ({low:.3g}-{high:.3g})"


def estimate_ms(estimate: Estimate | None) -> str:
    """Return a duration as "12 ms (11-14)"."""
    if estimate is None:
        return "-"
    return f"{four_digits(estimate.value)} ms ({four_digits(estimate.low)}-{four_digits(estimate.high)})"


def evidence(value: float) -> str:
    """Return evidence as people read it: beyond a million its size says nothing."""
    return "over 1,000,000" if value > 1e6 else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def event_text(event: RolloutEvent) -> str:
    """Return what has happened."""
    return f"{event.state.value.replace('_', ' ')} at {event.percent:g} % ({event.who}: {event.why})"


def alarm_level(status: RolloutStatus) -> float:
    """Return the evidence from which on the judge gives an alarm."""
    return 1 / (1 - status.spec.judge.confidence)


def fullness(value: float, alarm: float) -> float:
    """Return how near evidence is to an alarm, from 0 to 1; below 1 it speaks for the candidate."""
    return min(max(math.log(value) / math.log(alarm), 0.0), 1.0) if value > 0 else 0.0


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole = max(int(seconds), 0)
    for size, unit, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {smaller}"
    return f"{whole} s"


def figure_rows(found: RolloutFigures, quantiles: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """Return the rows of a table: what, of the stable version, of the candidate."""
    both = (found.stable, found.candidate)
    rows = [("requests", *(f"{one.requests:,}" for one in both))]
    rows.append(("error rate", *(percent(one.error_rate) for one in both)))
    rows += [(f"p{float(q) * 100:g}", *_quantile(both, q)) for q in quantiles]
    return [(first, second, third) for first, second, third in rows]


def mirrored_rows(status: RolloutStatus) -> list[tuple[str, str]]:
    """Return what is known of mirrored requests: what, how many or which share; nothing without any."""
    mirror = status.total.mirror
    if not mirror.compared + mirror.failed + mirror.skipped:
        return []
    return [
        ("compared", f"{mirror.compared:,}"),
        ("as expected", percent(share(mirror.telling - mirror.bad, mirror.telling))),
        ("bad at most", _at_most(status)),
        ("other values", f"{mirror.differing:,}"),
        ("another one largest", f"{mirror.disagreeing:,}"),
        ("near ties", f"{mirror.near_ties:,}"),
        ("largest difference", f"{mirror.max_difference:.3g}"),
        ("failed at the candidate", f"{mirror.failed:,}"),
        ("not repeated", f"{mirror.skipped:,}"),
    ]


def _at_most(status: RolloutStatus) -> str:
    found = accepted(status.spec, status.total.mirror)
    return f"{found.bound:.2%} with a confidence of {found.confidence:.4g}"


def _shown(status: RolloutStatus) -> Outcomes:
    """Return the outcomes of the step that is on; of all steps when the rollout is over."""
    return status.total if status.state.over else status.outcomes


def _quantile(both: tuple[VersionFigures, ...], quantile: str) -> tuple[str, ...]:
    return tuple(estimate_ms(one.latency_ms.get(quantile)) for one in both)


def _table(status: RolloutStatus, found: RolloutFigures, quantiles: tuple[str, ...]) -> list[str]:
    head = ("", f"version {status.stable} (stable)", f"version {status.candidate} (candidate)")
    return columns([head, *figure_rows(found, quantiles)]).splitlines()


def _mirrored(status: RolloutStatus) -> list[str]:
    rows = mirrored_rows(status)
    return ["", "mirrored requests", *columns(rows).splitlines()] if rows else []


def _failures(status: RolloutStatus) -> Iterator[str]:
    """Yield the candidate's most frequent failures in words."""
    if found := failures(status):
        yield f"version {status.candidate} failed most by"
        yield from columns([(f"  {number:,}", text) for text, number in found]).splitlines()
        yield ""


def _judgement(status: RolloutStatus) -> Iterator[str]:
    verdict, alarm = status.verdict, alarm_level(status)
    for rule, value in verdict.evidence.items():
        bar = _bar(fullness(value, alarm), _EVIDENCE_BAR)
        level = f"{evidence(value)}, an alarm from {alarm:,.0f} on"
        yield f"evidence of {rule.replace('_', ' '):<18} {bar} {level}"
    yield from (f"alarm: {alarm}" for alarm in verdict.alarms)
    if verdict.detectable < 1:
        yield f"an error rate from {100 * verdict.detectable:.3g} % on would have been noticed"
    if verdict.waiting and not status.state.over:
        yield f"waiting for {verdict.waiting}"
    if verdict.holds and not status.state.over:
        yield f"not to take over yet: {verdict.holds}"
    if verdict.evidence or verdict.waiting or verdict.holds or verdict.detectable < 1:
        yield ""


def _reason(status: RolloutStatus) -> list[str]:
    return [status.reason] if status.reason else []


def _steps(status: RolloutStatus) -> str:
    return ", ".join(f"{step:g}" for step in (*status.spec.steps, 100))


def _bar(part: float, width: int) -> str:
    full = round(min(max(part, 0.0), 1.0) * width)
    return f"[{'#' * full}{'.' * (width - full)}]"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%m-%d %H:%M:%S")
