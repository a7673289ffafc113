"""`nereid token`: make, list and revoke the tokens of a file that `--auth-tokens-file` names."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from secrets import token_hex
from typing import Final

from app.access.token_file import change_tokens, read_tokens
from app.access.tokens import SCOPES, append, make_token, new_secret, without
from nereid.commands.columns import columns
from nereid_client.tools.arguments import positive

_FILE: Final = "tokens.jsonl"
_ABOUT: Final = "Make, list and revoke tokens of clients, for a server with --auth-tokens-file=FILE."


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (OSError, ValueError) as error:
        print(f"{arguments.file}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nereid token", description=_ABOUT)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = commands.add_parser("new", help="make a token: print it once, and keep its hash")
    new.set_defaults(run=_new)
    new.add_argument("--scope", type=_scopes, required=True, help=f"what it may do: {','.join(SCOPES)}")
    new.add_argument("--models", type=_words, help="patterns of model names, as 'a*,b'; by default all")
    new.add_argument("--rate", help="most inferences, as 100/s, 100/m or 100/h; by default any number")
    new.add_argument("--concurrency", type=positive, help="most inferences in flight; by default any number")
    text = "most that it consumes, as '5 EUR/d' or '3600 core-seconds/h' (periods h, d, w, 30d)"
    new.add_argument("--budget", help=f"{text}; by default any amount")
    new.add_argument("--name", help="for logs, metrics and revoking; by default made up")
    commands.add_parser("list", help="list the tokens of a file").set_defaults(run=_list)
    revoke = commands.add_parser("revoke", help="take a token out of a file")
    revoke.set_defaults(run=_revoke)
    revoke.add_argument("name", metavar="NAME")
    for command in commands.choices.values():
        command.add_argument("--file", default=_FILE, help=f"by default {_FILE}")
    return parser


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _scopes(text: str) -> tuple[str, ...]:
    for word in _words(text):
        if word not in SCOPES:
            raise argparse.ArgumentTypeError(f"'{word}' is no scope; scopes are {', '.join(SCOPES)}")
    return _words(text)


def _new(arguments: argparse.Namespace) -> None:
    secret = new_secret()
    fields = {name: getattr(arguments, name) for name in ("scope", "models", "rate", "concurrency", "budget")}
    given = {name: value for name, value in fields.items() if value is not None}
    token = make_token(secret, name=arguments.name or f"client-{token_hex(3)}", **given)
    made = change_tokens(arguments.file, partial(append, token=token))
    print(secret)  # alone, for TOKEN=$(nereid token new ...)
    print(f"'{token.name}' is in {arguments.file}; nothing shows its token again.", file=sys.stderr)
    if made and os.geteuid() == 0:
        text = "is root's alone: chown it to the user of the server, if that is another"
        print(f"{arguments.file} {text}.", file=sys.stderr)


def _list(arguments: argparse.Namespace) -> None:
    rows = [("name", "scope", "models", "rate", "concurrency", "budget")]
    for token in read_tokens(arguments.file):
        scope, models = ",".join(token.scope), ",".join(token.models)
        limits = (token.rate or "-", str(token.concurrency or "-"), token.budget or "-")
        rows.append((token.name, scope, models, *limits))
    print(columns(rows))


def _revoke(arguments: argparse.Namespace) -> None:
    change_tokens(arguments.file, partial(without, name=arguments.name))
