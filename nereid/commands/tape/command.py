"""`nereid tape`: what is on a tape, its rows, their export, and their removal."""

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nereid.commands.tape.listing import show_segments
from nereid.commands.tape.removal import remove
from nereid.commands.tape.showing import show
from nereid_client.tape.rows import TapeError
from nereid_client.tape.where import HELP, parse_where
from nereid_client.tools.arguments import command_parser, count
from nereid_client.tools.tapes import opened

_ABOUT: Final = "Look at recorded requests, take them to other programs, and remove them."
_EXAMPLES: Final = """examples:
  nereid tape ls /var/lib/nereid/tape
  nereid tape show /var/lib/nereid/tape --where 'model=simple and failed' --last 5
  nereid tape show /var/lib/nereid/tape 19a1c0ffee-17      # one row, with its tensors
  nereid tape export /var/lib/nereid/tape rows.parquet --where 'model=simple, since=1d'
  nereid tape rm /var/lib/nereid/tape --where 'id=order-4711'

exit status: 0 done; 1 there is no tape, it cannot be read or written, or nothing was found; 2 the arguments
are wrong"""
_HELP: Final = {
    "ls": ("what is on a tape: segments, models, rows, bytes, times, feedback", "nereid tape ls DIR"),
    "show": ("rows, the newest first; or one in full", "nereid tape show DIR --where 'latency_ms>50'"),
    "export": (
        "write rows as Parquet, for `nereid batch`, DuckDB or pandas",
        "nereid tape export DIR rows.parquet --where model=simple --split",
    ),
    "rm": ("remove rows, and what was said of them", "nereid tape rm DIR --where id=order-4711 --yes"),
}


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(argv)
    try:
        where = parse_where(*options.where)
    except TapeError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with opened(options.tape) as tape:
            if options.command == "ls":
                return show_segments(tape, options.json)
            if options.command == "show":
                return show(tape, where, options)
            if options.command == "rm":
                return remove(tape, where, options)
            from nereid.commands.tape.export import export

            return export(tape, where if options.where else None, options)
    except (TapeError, OSError, sqlite3.Error) as error:
        print(f"nereid tape {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("nereid tape", _ABOUT, _EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, (text, example) in _HELP.items():
        command = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=f"example: {example}"
        )
        command.add_argument("tape", metavar="TAPE", help="directory of --tape, of one node, or one segment")
        command.set_defaults(where=[])
        _add_options(name, command)
    return parser


def _add_options(name: str, command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    if name != "ls":
        add("--where", action="append", metavar="CONDITIONS", required=name == "rm", help=HELP)
    if name == "show":
        add("key", nargs="?", metavar="KEY", help="of the row to print in full")
        add("--last", type=count, default=20, metavar="N", help="so many rows (20); 0 for all")
    if name in ("ls", "show"):
        add("--json", action="store_true", help="print lines of JSON")
    if name == "export":
        add("file", type=Path, metavar="FILE", help="to write, .parquet; not there yet")
        add("--split", action="store_true", help="a row for each row of a request's batch")
    if name == "rm":
        add("--yes", action="store_true", help="do not ask")
        add("--wait", action="store_true", help="wait for segments that are being written, up to 15 minutes")
