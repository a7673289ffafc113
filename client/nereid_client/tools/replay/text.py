"""A replay on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nereid_client.tools.digits import all_digits
from nereid_client.tools.perf.report.text import empty_table
from nereid_client.tools.replay.session import Outcome
from nereid_client.tools.replay.verdict import EQUAL, Verdict

_WORST: Final = 10
_LONGEST: Final = 100
_MOST: Final = 5
"""Reasons of failures."""


def show(console: Console, outcome: Outcome, found: Verdict) -> None:
    """Print all there is."""
    for line in about(outcome):
        console.print(plain(line), markup=False)
    for made in (_outputs(outcome), _worst(outcome), _latencies(outcome)):
        if made is not None:
            console.print(made)
    for line in notes(outcome):
        console.print(plain(line), markup=False)
    color = "green" if found.status == EQUAL else "red"
    why = escape(plain(f": {'; '.join(found.why)}")) if found.why else ""
    console.print(f"[{color}]{found.word}[/]{why}")


def about(outcome: Outcome) -> Iterator[str]:
    """Yield what was repeated, where, and what it is compared with."""
    options, result = outcome.options, outcome.now.result
    against = f"{outcome.beside} at {options.beside.url}" if options.beside else "the recorded answers"
    yield f"{outcome.server} at {options.address.url}, beside {against}"
    speed = (
        f"{all_digits(options.speed)} times the recorded speed"
        if options.speed
        else f"{options.in_flight} in flight"
    )
    yield (
        f"{len(outcome.now.answers)} rows of {', '.join(outcome.plan.models)}, recorded in "
        f"{outcome.seconds:.1f} s, repeated in {result.seconds:.1f} s ({speed})"
    )


def output_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield a row for each output of each model: counts of what was compared."""
    noise = outcome.noise.largest if outcome.noise is not None else {}
    for model, comparison in outcome.differences.models.items():
        for name, counts in comparison.outputs.items():
            faults = ", ".join(f"{number} {fault}" for fault, number in counts.faults.items())
            known = noise.get(model, {}).get(name)
            yield (
                model,
                name,
                str(counts.compared),
                str(counts.faults.total()),
                faults,
                str(counts.near_ties) if counts.near_ties else "",
                f"{counts.absolute:.3g}",
                "" if known is None else f"{known:.3g}",
                f"{counts.cosine:.6g}",
            )


OUTPUTS: Final = (
    *("model", "output", ">compared", ">differing", "why", ">near ties", ">largest difference"),
    *(">noise", ">lowest cosine"),
)
LATENCIES: Final = ("latency, ms", ">then", ">now", ">times", ">95%", "")


def latency_rows(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    """Yield a row for each percentile of both."""
    for figure in outcome.latencies.figures:
        times = f"{figure.now / figure.then:.2f}" if figure.then else ""
        interval = f"{figure.low:.2f} to {figure.high:.2f}" if figure.ratio else ""
        yield figure.name, f"{figure.then:.2f}", f"{figure.now:.2f}", times, interval, figure.verdict


def _outputs(outcome: Outcome) -> Table | None:
    return _table(OUTPUTS, list(output_rows(outcome)))


def _latencies(outcome: Outcome) -> Table | None:
    return _table(LATENCIES, list(latency_rows(outcome)))


def worst_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """Return the rows that are furthest from their rules, the worst first."""
    every = [
        (-one.severity, model, one.row, one.why)
        for model, comparison in outcome.differences.models.items()
        for one in comparison.worst
    ]
    return [(row, model, _cut(why)) for _, model, row, why in sorted(every)[:_WORST]]


WORST: Final = ("worst rows", "model", "why")


def _worst(outcome: Outcome) -> Table | None:
    return _table(WORST, worst_rows(outcome))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table | None:
    if not rows:
        return None
    made = empty_table(*head)
    for row in rows:
        made.add_row(*(escape(plain(cell)) for cell in row))
    return made


def plain(text: str) -> str:
    """Return a text without what moves a terminal's cursor: clients have chosen ids and names."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def notes(outcome: Outcome) -> Iterator[str]:
    """Yield what is to be known besides the figures."""
    found = outcome.differences
    for why, number in outcome.plan.skipped.most_common():
        yield f"not repeated: {number}: {why}"
    for model, comparison in found.models.items():
        for why, number in comparison.failed.most_common(_MOST):
            yield f"{model}: {number} times {why}"
    for why, number in found.apart.most_common():
        yield f"not compared: {number}: {why}"
    if outcome.noise is None:
        yield "noise: not measured"
    else:
        yield f"noise: {outcome.noise.rows} rows were asked for twice before"
    if outcome.cache_hits:
        yield f"response cache: {outcome.cache_hits} answers came out of it: they tell nothing of the model"
    if outcome.latencies.why:
        yield f"latency: {outcome.latencies.why}"
    elif outcome.latencies.way_ms:
        yield (
            f"latency: {outcome.latencies.way_ms:.2f} ms, which a request takes that does nothing, were "
            "taken off those of now: recorded ones begin in the server"
        )
    if outcome.busy:
        yield outcome.busy
    for model, comparison in found.models.items():
        if comparison.rules.min_agreement is not None:
            yield f"{model}: {comparison.acceptance()}"
