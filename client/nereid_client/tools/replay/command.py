"""The command `nereid replay`: its flags, the files that it writes, its exit status."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from nereid_client import ServerError
from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import TapeError
from nereid_client.tape.where import HELP, parse_where
from nereid_client.tools.arguments import command_parser, count, percent, positive, seconds
from nereid_client.tools.perf.command.flags import add_server, add_tls, headers_of, tls_of
from nereid_client.tools.perf.options import Address, PerfError, read_address
from nereid_client.tools.perf.report.text import console
from nereid_client.tools.perf.signals import Signals
from nereid_client.tools.progress import Shown
from nereid_client.tools.replay.differences import as_json
from nereid_client.tools.replay.options import Options, ReplayError
from nereid_client.tools.replay.rules import Rules, read_rules
from nereid_client.tools.replay.session import Outcome, Replay
from nereid_client.tools.replay.text import plain, show
from nereid_client.tools.replay.verdict import VOID, WRONG_COMMAND, Verdict, verdict

_FORMAT: Final = 1
"""Of the JSON."""
_RECORDED: Final = "recorded"
_ABOUT: Final = """Repeat the requests of a tape at a running server, Nereid or Triton, and tell how its
answers differ from the recorded ones, or from those of another server. A few rows are asked for twice before,
so that no rule is tighter than what right answers differ by."""
_EXAMPLES: Final = """examples:
  nereid replay tape -u localhost:8000 --speed max            # are the answers the same?
  nereid replay tape --where 'model=resnet' --version 4       # those of a new version
  nereid replay tape --compare new-host:8000 --html page.html # of another server, at the recorded moments
  nereid replay tape --rules rollout.yaml --json replay.json

exit status: 0 if the answers are equal, by the rules; 1 if they differ; 2 for a wrong command line; 3 if
latencies are worse; 4 if it is void, a server cannot be reached, or nothing could be repeated; 130 or 143
when a signal ended it: what was repeated is compared."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = command_parser("nereid replay", _ABOUT, _EXAMPLES, allow_abbrev=False)
    made.add_argument("tape", help="a directory or file of a server's --tape")
    add_server(made.add_argument_group("server"))
    _add_rows(made)
    _add_comparison(made)
    _add_load(made)
    add_tls(made)
    return made


def _add_rows(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("rows")
    group.add_argument("--where", action="append", default=[], metavar="CONDITIONS", help=HELP)
    text = "at most, the newest (100000)"
    group.add_argument("--rows", type=count, default=100_000, metavar="N", help=text)
    text = "ask for model B where A is on the tape"
    group.add_argument("--map-model", action="append", default=[], metavar="A=B", help=text)
    group.add_argument("--version", default="", metavar="V", help="to ask for; what each row asked for")


def _add_comparison(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("comparison")
    text = "the recorded answers (default), or those of another server, with the versions that had answered"
    group.add_argument("--compare", default=_RECORDED, metavar="recorded|URL", help=text)
    text = "YAML or JSON with the rules of outputs, or a rollout.yaml"
    group.add_argument("--rules", type=Path, metavar="FILE", help=text)
    text = "rows that are asked for twice before, 0 for none (200)"
    group.add_argument("--noise", type=count, default=200, metavar="N", help=text)
    text = "by which latencies may be worse (10)"
    group.add_argument("--threshold", type=percent, default=10, metavar="PERCENT", help=text)
    group.add_argument("--json", metavar="FILE", help="everything; - for standard output")
    group.add_argument("--html", type=Path, metavar="FILE", help="one page with plots")


def _add_load(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("load")
    text = "times the recorded speed (1), or max: as fast as it goes"
    group.add_argument("--speed", type=_speed, default=1.0, metavar="N|max", help=text)
    group.add_argument("--in-flight", type=positive, default=8, metavar="N", help="of --speed max (8)")
    group.add_argument("--processes", type=positive, default=1, metavar="N", help="generators (1)")
    group.add_argument("--connections", type=positive, default=1024, metavar="N", help="at most (1024)")
    group.add_argument("--timeout", type=seconds, default=30.0, metavar="S", help="of a request (30)")
    text = "of requests, and of answers, in temporary files (8192)"
    group.add_argument("--max-mb", type=positive, default=8192, metavar="MIB", help=text)
    text = "that rows may take at their speed (86400)"
    group.add_argument("--max-seconds", type=seconds, default=86_400, metavar="S", help=text)


def _speed(text: str) -> float:
    if text == "max":
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"'{text}' is no speed: give 1, 4, 0.5 or max")
    return value


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    errors = console(stderr=True)
    given = parser().parse_args(argv)
    try:
        options, rules = _read(given)
        tape = Tape(given.tape)
    except (PerfError, ReplayError, TapeError) as error:
        errors.print(plain(f"nereid replay: {error}"), markup=False)
        return WRONG_COMMAND
    try:
        with (
            Signals() as signals,
            Shown(errors, "replay") as shown,
            tempfile.TemporaryDirectory(prefix="nereid-replay-") as directory,
            tape,
        ):
            outcome = Replay(tape, options, rules, shown, signals, Path(directory)).run()
            found = verdict(outcome)
        _tell(given, outcome, found)
    except (PerfError, ReplayError, TapeError, ServerError) as error:
        errors.print(plain(f"nereid replay: {error}"), markup=False)
        return VOID
    except OSError as error:
        errors.print(f"nereid replay: {error.filename or given.tape}: {error.strerror}", markup=False)
        return VOID
    except KeyboardInterrupt as stopped:
        return getattr(stopped, "status", 130)
    return 128 + signals.number if signals.number else found.status


def _read(given: argparse.Namespace) -> tuple[Options, Rules]:
    """Return what a command line asks for.

    Raises:
        PerfError, ReplayError, TapeError: a value that cannot be used.
    """
    for path in (given.html, None if given.json in (None, "-") else Path(given.json)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ReplayError(f"cannot write {path}")
    tls = tls_of(given)
    beside: Address | None = None
    if given.compare != _RECORDED:
        beside = read_address(given.compare, given.protocol, tls)
    options = Options(
        address=read_address(given.url, given.protocol, tls),
        headers=headers_of(given),
        speed=given.speed,
        where=parse_where(*given.where) if given.where else None,
        rows=max(given.rows, 1),
        models=dict(_pair(text) for text in given.map_model),
        version=given.version,
        beside=beside,
        in_flight=given.in_flight,
        noise=given.noise,
        threshold=given.threshold / 100,
        max_bytes=given.max_mb << 20,
        max_seconds=given.max_seconds,
        timeout_s=given.timeout,
        processes=given.processes,
        connections=given.connections,
    )
    return options, read_rules(given.rules) if given.rules else Rules()


def _pair(text: str) -> tuple[str, str]:
    recorded, _, other = text.partition("=")
    if not recorded or not other:
        raise ReplayError(f"--map-model: '{text}' is no pair: give RECORDED=OTHER")
    return recorded, other


def _tell(given: argparse.Namespace, outcome: Outcome, found: Verdict) -> None:
    """Print and write what a replay has shown."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    if given.json is not None:
        text = json.dumps(document(outcome, found, when), indent=1) + "\n"
        if given.json == "-":
            sys.stdout.write(text)
        else:
            Path(given.json).write_text(text)
    if given.json != "-":
        show(console(), outcome, found)
    if given.html is not None:
        from nereid_client.tools.replay.page import page

        given.html.write_text(page(outcome, found, when))


def document(outcome: Outcome, found: Verdict, when: str) -> dict[str, Any]:
    """Return a replay as JSON."""
    options, result, noise = outcome.options, outcome.now.result, outcome.noise
    return {
        "format": _FORMAT,
        "verdict": found.word,
        "why": list(found.why),
        "exit_status": found.status,
        "when": when,
        "server": outcome.server,
        "url": options.address.url,
        "compared_with": options.beside.url if options.beside else _RECORDED,
        "speed": options.speed or "max",
        "models": outcome.plan.models,
        "rows": len(outcome.now.answers),
        "not_repeated": dict(outcome.plan.skipped),
        "recorded_seconds": outcome.seconds,
        "seconds": result.seconds,
        "differences": as_json(outcome.differences),
        "noise": None
        if noise is None
        else {"rows": noise.rows, "refused": noise.refused, "largest": noise.largest},
        "latency": outcome.latencies.as_json(),
        "own_lateness_ms": result.lateness.percentiles,
        "void": result.void,
        "cache_hits": outcome.cache_hits,
        "busy_machine": outcome.busy,
    }
