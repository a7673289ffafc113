"""A run: which levels are measured, what is printed and written, and the exit status."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.tools.perf import slo
from app.tools.perf.bench import Bench
from app.tools.perf.command.flags import read_options
from app.tools.perf.compare import Change, compare, unknown, worse
from app.tools.perf.generator.job import Level
from app.tools.perf.options import Options, PerfError
from app.tools.perf.report import text
from app.tools.perf.report.csv import csv_text
from app.tools.perf.report.export import profile
from app.tools.perf.result import FORMAT, Result, Seen
from app.tools.progress import Shown
from nereid_client import ServerError

_CAPACITY = Level("concurrency", 16)
_CAPACITY_S = 2.0
_SHARES = (0.25, 0.5, 0.75, 0.9)
_PROBE_S = (2.0, 10.0)
_PROBE_REQUESTS = 300
_FIRST_SHARE = 0.25


@dataclass(frozen=True)
class Outcome:
    """All that was measured; `found` of a search for an objective."""

    results: tuple[Result, ...]
    found: slo.Found | None = None


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    console = text.console(stderr=True)
    try:
        options, given = read_options(argv)
        rules = slo.read_rules(options.slo) if options.slo else ()
    except PerfError as error:
        console.print(f"nereid perf: {error}", markup=False)
        return 2
    try:
        old = _read(given.compare) if given.compare else None
        kept: list[Seen] = []
        keep = kept.append if given.profile_export_file else None
        with Shown(console, options.model) as shown, Bench(options, shown, keep) as bench:
            outcome = measured(bench, options, rules)
            server = bench.server.metadata()
        document = document_of(options, server, outcome)
        changes = compare(old, document, given.threshold / 100) if old is not None else []
        _write(given, options, document, outcome, changes)
        if given.profile_export_file:
            exported = profile(kept, document["server"], time.time_ns() - time.monotonic_ns())
            _save(given.profile_export_file, json.dumps(exported) + "\n")
    except (PerfError, ServerError) as error:
        console.print(f"nereid perf: {error}", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return _status(outcome, changes)


def measured(bench: Bench, options: Options, rules: Sequence[slo.Rule]) -> Outcome:
    """Measure what the options ask for."""
    if rules:
        return _searched(bench, options, rules)
    levels = options.levels or curve_levels(bench.measure(_CAPACITY, 1, _CAPACITY_S))
    return Outcome(tuple(bench.measure(level) for level in levels))


def curve_levels(capacity: Result) -> tuple[Level, ...]:
    """Return rates below what the server can do.

    Raises:
        PerfError: it answers nothing.
    """
    if not capacity.rate:
        raise PerfError(f"no request was answered well: {', '.join(capacity.errors)}")
    return tuple(Level("rate", float(f"{share * capacity.rate:.2g}")) for share in _SHARES)


def _searched(bench: Bench, options: Options, rules: Sequence[slo.Rule]) -> Outcome:
    results: list[Result] = []

    def keeps(rate: float) -> bool:
        seconds = min(max(_PROBE_S[0], _PROBE_REQUESTS / rate), _PROBE_S[1])
        results.append(bench.measure(Level("rate", rate), 1, seconds))
        return not slo.broken(rules, results[-1])

    first = options.levels[0].value if options.levels else 0.0
    if not first:
        capacity = bench.measure(_CAPACITY, 1, _CAPACITY_S)
        first = max(_FIRST_SHARE * capacity.rate, 1.0)
    found = slo.search(keeps, float(f"{first:.2g}"))
    if not found.rate:
        return Outcome(tuple(results), found)
    last = bench.measure(Level("rate", found.rate))
    return Outcome((*results, last), found)


def document_of(options: Options, server: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
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
        "slo": None if found is None else {"rules": options.slo, "rate": found.rate, "tried": found.tried},
        "levels": [result.as_json() for result in outcome.results],
    }


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
        from app.tools.perf.report.page import page

        _save(given.html, page(document, outcome.results, changes))


def _save(path: Path, content: str) -> None:
    try:
        path.write_text(content)
    except OSError as error:
        raise PerfError(f"{path}: {error.strerror}") from None


def _print(
    options: Options, document: Mapping[str, Any], outcome: Outcome, changes: Sequence[Change]
) -> None:
    console, results = text.console(), outcome.results
    about = f"{options.model} at {document['url']} ({document['server']})"
    console.print(f"{about}, batch {options.batch}, {document['arrivals']}", markup=False)
    found = outcome.found
    tables = text.results_table(results), text.share_table(results), text.streams_table(results)
    for table in (*tables, text.changes_table(changes) if changes else None):
        if table is not None:
            console.print(table)
    if unknown(changes):
        console.print("no verdict: each level is void, in this run or in the earlier one")
    for note in text.notes(results):
        console.print(note, markup=False)
    if console.is_terminal and (drawn := text.curve(results, console.width)):
        print(drawn)
    if found is not None:
        kept = f"{found.rate:.4g}/s keeps {options.slo}" if found.rate else f"no rate keeps {options.slo}"
        console.print(f"{kept}; {len(found.tried)} loads were tried", markup=False)


def _status(outcome: Outcome, changes: Sequence[Change]) -> int:
    answered = any(result.rate for result in outcome.results)
    if not answered or any(result.wrong for result in outcome.results) or unknown(changes):
        return 1
    if outcome.found is not None and not outcome.found.rate:
        return 4
    return 3 if worse(changes) else 0
