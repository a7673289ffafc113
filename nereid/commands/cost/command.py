"""`nereid cost`: what models and clients consume, and what that costs."""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from app.core.cost.ledger import read_hours
from app.core.cost.prices import Prices, read_prices
from app.core.cost.report import FIELDS, report
from app.core.encoding import to_json
from app.core.files.private_files import state_directory
from nereid.commands.cost.page import page
from nereid.commands.cost.spreadsheet import csv_text
from nereid.commands.cost.text import screen
from nereid.console.server_record import running_servers

_ABOUT: Final = "Tell what models and clients consume, and what that costs."
_REPORT: Final = (
    "Print what was used and what was kept for it, by client and model, beside what was measured."
)
_EXAMPLES: Final = """examples:
  nereid cost report                                     # the last day, by token and model
  nereid cost report --since 7d --by model,version --prices prices.yaml
  nereid cost report --since 2026-11-01 --until 2026-12-01 --by token --csv november.csv --prices prices.yaml
  nereid cost report node1/cost node2/cost --html cost.html

exit status: 0 done; 1 there is no ledger, or a file cannot be read or written; 2 wrong arguments"""
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_BY: Final = ("token", "model")

clock = time.time


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(argv)
    try:
        prices = None if options.prices is None else _prices(options.prices)
        found = report(read_hours(_directories(options), options.since, options.until), options.by, prices)
        if options.csv is not None:
            options.csv.write_text(csv_text(found))
        if options.html is not None:
            options.html.write_text(page(found, datetime.now(UTC).strftime("made %Y-%m-%d %H:%M UTC")))
    except OSError as error:
        print(f"{error.filename or 'the ledger'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(to_json(found).decode() if options.json else "\n".join(screen(found)))
    return 0 if found.hours else 1


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="nereid cost", description=_ABOUT)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    made = commands.add_parser(
        "report", help=_REPORT, description=_REPORT, epilog=_EXAMPLES, formatter_class=style
    )
    add = made.add_argument
    text = "directories of ledgers, one of each node; by default those of this user's servers here"
    add("directories", metavar="DIR", nargs="*", type=Path, help=text)
    text = "from then on, in whole hours: 24h, 7d, 2026-11-01 or 2026-11-01T12:00 (UTC); by default 24h"
    add("--since", type=_moment, default="24h", metavar="TIME", help=text)
    add("--until", type=_moment, metavar="TIME", help="up to then; by default now")
    text = f"what lines are by: some of {', '.join(FIELDS)}; by default {','.join(_BY)}"
    add("--by", type=_by, default=_BY, metavar="FIELDS", help=text)
    add("--prices", type=Path, metavar="FILE", help="price file, in YAML")
    add("--csv", type=Path, metavar="FILE", help="write all lines, for a spreadsheet")
    add("--html", type=Path, metavar="FILE", help="write a page with charts for a browser")
    add("--json", action="store_true", help="print the report as JSON")
    return parser


def _moment(text: str) -> float:
    """Read a moment, Unix seconds: a date or a time in UTC, or how long ago."""
    if found := re.fullmatch(r"(\d{1,6})([mhdw])", text, re.ASCII):
        return clock() - int(found[1]) * _UNITS[found[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        said = f"'{text}' is neither a time such as 2026-11-01 nor a duration such as 24h or 7d"
        raise argparse.ArgumentTypeError(said) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _by(text: str) -> tuple[str, ...]:
    fields = tuple(dict.fromkeys(text.split(",")))
    for field in fields:
        if field not in FIELDS:
            raise argparse.ArgumentTypeError(f"'{field}' is none of {', '.join(FIELDS)}")
    return fields


def _prices(path: Path) -> Prices:
    try:
        return read_prices(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _directories(options: argparse.Namespace) -> list[Path]:
    """Return the ledgers to read.

    Raises:
        OSError: there is none.
    """
    if options.directories:
        return list(options.directories)
    recorded = [Path(each.ledger) for each in running_servers() if each.ledger]
    return recorded or [Path(state_directory("cost"))]
