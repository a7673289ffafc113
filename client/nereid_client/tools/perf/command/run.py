"""A run: which levels are measured, what is printed and written, and the exit status."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nereid_client import ServerError
from nereid_client.tools.digits import all_digits
from nereid_client.tools.perf import slo
from nereid_client.tools.perf.asking import Asking
from nereid_client.tools.perf.bench import Bench
from nereid_client.tools.perf.command.flags import read_options
from nereid_client.tools.perf.compare import Change, compare, unknown, worse
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.machine import busy_because, used_by_others
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.perf.report import text
from nereid_client.tools.perf.report.csv import csv_text
from nereid_client.tools.perf.report.export import profile
from nereid_client.tools.perf.result import FORMAT, Result, Seen
from nereid_client.tools.perf.search import Found, Search
from nereid_client.tools.perf.signals import Signals, Stopped
from nereid_client.tools.progress import Shown

_CAPACITY = Level("concurrency", 16)
_CAPACITY_S = 2.0
_SHARES = (0.25, 0.5, 0.75, 0.9)
_FIRST_SHARE = 0.4


@dataclass(frozen=True)
class Outcome:
    """All that was measured; `found` of a search for an objective, `stopped` by which signal it was ended."""

    results: tuple[Result, ...]
    found: Found | None = None
    stopped: Stopped | None = None


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    console = text.console(stderr=True)
    try:
        options, given = read_options(argv)
        rules = slo.read_rules(options.slo) if options.slo else ()
        options = replace(options, percentiles=tuple(slo.percentiles(rules)))
    except PerfError as error:
        console.print(f"nereid perf: {error}", markup=False)
        return 2
    try:
        old = _read(given.compare) if given.compare else None
        kept: list[Seen] = []
        keep = kept.append if given.profile_export_file else None
        if rules:
            console.print(_bound(options), markup=False)
        with (
            Signals() as signals,
            Shown(console, options.model) as shown,
            Bench(options, shown, keep, signals=signals) as bench,
        ):
            used = used_by_others()
            outcome = measured(bench, options, rules)
            server = bench.server.metadata()
        document = document_of(options, server, outcome, busy_because(used))
        changes = compare(old, document, given.threshold / 100) if old is not None else []
        _write(given, options, document, outcome, changes)
        if given.profile_export_file:
            exported = profile(kept, document["server"], time.time_ns() - time.monotonic_ns())
            _save(given.profile_export_file, json.dumps(exported) + "\n")
    except (PerfError, ServerError) as error:
        console.print(f"nereid perf: {error}", markup=False)
        return 1
    except KeyboardInterrupt as stopped:
        return getattr(stopped, "status", 130)
    return outcome.stopped.status if outcome.stopped else _status(outcome, changes)


def _bound(options: Options) -> str:
    return (
        f"searching the highest rate that keeps {options.slo}: "
        f"{all_digits(options.search_s)} s at most (--search-time)"
    )


def measured(bench: Bench, options: Options, rules: Sequence[slo.Rule]) -> Outcome:
    """Measure what the options ask for; as far as a signal lets it.

    Raises:
        Stopped: by a signal, before there was anything.
    """
    results: list[Result] = []
    found = None
    try:
        if rules:
            found = _searched(bench, options, rules, results)
        else:
            for level in options.levels or curve_levels(bench.measure(_CAPACITY, 1, _CAPACITY_S)):
                results.append(bench.measure(level))
    except Stopped as stopped:
        results += [bench.last] if bench.last else []
        if not results:
            raise
        found = Found(0.0, (), "a signal ended the search") if rules else None
        return Outcome(tuple(results), found, stopped)
    return Outcome(tuple(results), found)


def curve_levels(capacity: Result) -> tuple[Level, ...]:
    """Return rates below what the server can do.

    Raises:
        PerfError: it answers nothing.
    """
    if not capacity.rate:
        raise PerfError(f"no request was answered well: {', '.join(capacity.errors)}")
    return tuple(Level("rate", float(f"{share * capacity.rate:.2g}")) for share in _SHARES)


def _searched(bench: Bench, options: Options, rules: Sequence[slo.Rule], results: list[Result]) -> Found:
    """Search the rate; the results of its measurements are appended as they come."""
    end = time.monotonic() + options.search_s
    capacity = bench.measure(_CAPACITY, 1, _CAPACITY_S)
    if not capacity.rate:
        raise PerfError(f"no request was answered well: {', '.join(capacity.errors)}")
    first = options.levels[0].value if options.levels else max(_FIRST_SHARE * capacity.rate, 1.0)
    asking = Asking(bench, rules, capacity.rate, results, options.duration_s)
    return Search(asking.ask, lambda: end - time.monotonic(), asking.seconds, capacity.rate).run(first)


def document_of(
    options: Options, server: Mapping[str, Any], outcome: Outcome, busy: str = ""
) -> dict[str, Any]:
    """Return the run as JSON."""
    found = outcome.found
    return {
        "format": FORMAT,
        "model": options.model,
        "version": options.version,
        "server": f"{server.get('name', '')} {server.get('version', '')}".strip(),
        "url": options.address.url,
        "protocol": options.address.protocol,
        "batch": options.batch,
        "data": options.data,
        "shared_memory": options.shared_memory,
        "arrivals": _arrivals(options, outcome.results),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "busy_machine": busy,
        "slo": None if found is None else _slo(options, found),
        "levels": [result.as_json() for result in outcome.results],
    }


def _slo(options: Options, found: Found) -> dict[str, Any]:
    tried = [(each.asked, each.kept) for each in found.tried]
    return {"rules": options.slo, "rate": found.rate, "why": found.why, "tried": tried}


def _arrivals(options: Options, results: Sequence[Result]) -> str:
    """Return how requests begin; levels of both kinds are told apart by their names."""
    if not any(result.offered for result in results):
        return "closed loop"
    return f"{options.distribution} arrivals"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise PerfError(f"--compare: {path}: {error.strerror}") from None
    except ValueError as error:
        raise PerfError(f"--compare: {path} is no JSON: {error}") from None


def _write(
    given: argparse.Namespace,
    options: Options,
    document: Mapping[str, Any],
    outcome: Outcome,
    changes: Sequence[Change],
) -> None:
    if given.json == "-":
        json.dump({**document, "changes": [change._asdict() for change in changes]}, sys.stdout, indent=1)
        print()
    else:
        _print(options, document, outcome, changes)
        if given.json:
            _save(Path(given.json), json.dumps(document, indent=1) + "\n")
    if given.csv:
        _save(given.csv, csv_text(outcome.results, options.percentile, given.verbose_csv))
    if given.html:
        from nereid_client.tools.perf.report.page import page

        _save(given.html, page(document, outcome.results, changes))


def _save(path: Path, content: str) -> None:
    try:
        path.write_text(content)
    except OSError as error:
        raise PerfError(f"{path}: {error.strerror}") from None


def _print(
    options: Options, document: Mapping[str, Any], outcome: Outcome, changes: Sequence[Change]
) -> None:
    console, results = text.console(), _ordered(outcome)
    best = text.winner(document["slo"], outcome.results)
    about = f"{options.model} at {document['url']} ({document['server']})"
    console.print(f"{about}, batch {options.batch}, {document['arrivals']}", markup=False)
    tables = text.results_table(results, best), text.share_table(results), text.streams_table(results)
    for table in (*tables, text.changes_table(changes) if changes else None):
        if table is not None:
            console.print(table)
    if unknown(changes):
        console.print("no verdict: each level is void, in this run or in the earlier one")
    for note in text.notes(results):
        console.print(note, markup=False)
    if console.is_terminal and (drawn := text.curve(results, console.width)):
        print(drawn)
    if document["busy_machine"]:
        console.print(document["busy_machine"], markup=False)
    if document["slo"]:
        console.print(f"{text.verdict(document['slo'])}; {len(results)} loads were measured", markup=False)


def _ordered(outcome: Outcome) -> Sequence[Result]:
    """Return the results as they are shown: of a search by their rates."""
    if outcome.found is None:
        return outcome.results
    return sorted(outcome.results, key=lambda result: result.level.value)


def _status(outcome: Outcome, changes: Sequence[Change]) -> int:
    answered = any(result.rate for result in outcome.results)
    if not answered or any(result.wrong for result in outcome.results) or unknown(changes):
        return 1
    if outcome.found is not None and not outcome.found.rate:
        return 4
    return 3 if worse(changes) else 0
