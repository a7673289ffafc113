"""`nereid drift`: how far a model's requests are from what they were."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from app.core.drift.status import DriftStatus
from nereid.commands.drift import reference
from nereid.commands.drift.page import page
from nereid.commands.drift.text import screen
from nereid.commands.servers import Unanswered, add_server, chosen_api
from nereid_client.tools.arguments import command_parser, positive

_ABOUT: Final = "Show how far a model's requests are from its reference."
_EXAMPLES: Final = """examples:
  nereid drift wine                            # a table
  nereid drift wine --html drift.html          # both distributions of each feature, as a page
  nereid drift reference wine --from TAPE      # what later requests are compared with

exit status: 0 nothing has changed; 3 an alarm; 1 the server refuses, or there is none; 2 wrong arguments"""
_ALARM: Final = 3


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    if argv and argv[0] == "reference":
        parser = command_parser("nereid drift reference", reference.ABOUT, reference.EXAMPLES)
        reference.add_arguments(parser)
        return reference.run(parser.parse_args(argv[1:]))
    parser = command_parser("nereid drift", _ABOUT, _EXAMPLES)
    _add_arguments(parser)
    return _show(parser.parse_args(argv))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--version", type=positive, metavar="N", help="by default the newest that is watched")
    parser.add_argument("--html", metavar="FILE", help="write a page for a browser")
    parser.add_argument("--json", action="store_true", help="print it as the server answers")
    add_server(parser)


def _show(options: argparse.Namespace) -> int:
    api = chosen_api(options)
    if api is None:
        return 1
    version = f"/versions/{options.version}" if options.version is not None else ""
    try:
        answer = api.ask("GET", f"/v2/models/{quote(options.model, safe='')}{version}/drift")
        status = msgspec.json.decode(answer, type=DriftStatus)
        if options.html:
            Path(options.html).write_text(page(status))
    except (Unanswered, msgspec.DecodeError) as error:
        print(f"{api.url}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.html}: {error.strerror}", file=sys.stderr)
        return 1
    print(answer.decode() if options.json else "\n".join(screen(status)))
    return _ALARM if status.since else 0
