"""`nereid rollout`: what a rollout does, changes of it, and the comparison of its versions."""

import argparse
import getpass
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import yaml

from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutChange, RolloutState, RolloutStatus
from nereid.commands.columns import printable
from nereid.commands.rollout.page import page
from nereid.commands.rollout.text import comparison, forgotten, history_lines, line, screen
from nereid.commands.servers import Api, Unanswered, add_server, chosen_api
from nereid_client.tools.arguments import command_parser, percent, positive

_ABOUT: Final = "Show, change and compare: how a new version of a model takes over its requests."
_EXAMPLES: Final = """examples:
  nereid rollout start resnet --weight 5         # the newest version gets 5 % of the requests
  nereid rollout status resnet --watch           # until it is over
  nereid rollout set resnet --weight 50
  nereid rollout promote resnet                  # all requests, now
  nereid rollout abort resnet                    # no requests, now
  nereid rollout report resnet --html ab.html    # both versions compared, as a page
  nereid rollback resnet                         # to what served before the last rollout
  nereid rollout history resnet                  # what has served, since when, by whom and why

exit status: 0 the rollout is on or has succeeded, or was aborted as asked; 1 it has failed or was aborted, or
the server refuses; 2 the arguments are wrong"""
_HELP: Final = {
    "status": "what a rollout does, or the last one did",
    "start": "roll the newest version out; also one that has failed before",
    "set": "change the weight or the policy",
    "pause": "stay at this weight",
    "resume": "go on",
    "promote": "give the new version all requests",
    "abort": "give the new version no requests, and unload it",
    "rollback": "go back at once to the version that served before, also after the rollout",
    "forget": "let versions be tried again that were rolled back",
    "history": "what has served, when, why and by whom that was changed, and what is rejected",
    "report": "compare both versions: counts, error rates, latencies and outputs",
}
_FAILURES: Final = {
    **dict.fromkeys(_HELP, (RolloutState.FAILED, RolloutState.ABORTED, RolloutState.ROLLING_BACK)),
    "abort": (),
    "rollback": (),
    "forget": (),
}
"""The states in which a command has not led to what it is for."""
_CHANGE_S: Final = 3600.0
"""A start answers when its version is loaded."""
_WATCH_S: Final = 1.0
_MOST_WHY: Final = 200
_MOST_USER: Final = 64
"""Characters that the server takes."""
_MOST_MISSED: Final = 60
"""Questions without an answer, one after the other, which a watch endures: the rollout goes on meanwhile."""
_LINE_S: Final = 10.0
"""Between two lines that differ in counts alone, where the output is no terminal."""

pause = time.sleep


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    return run(_parser().parse_args(argv))


def run(options: argparse.Namespace) -> int:
    """Run a command whose arguments were read; return its exit status."""
    api = chosen_api(options)
    if api is None:
        return 1
    try:
        return _run(api, options)
    except (Unanswered, msgspec.DecodeError) as error:
        print(f"{api.url}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(api: Api, options: argparse.Namespace) -> int:
    if options.command == "history":
        return _history(api, options)
    if options.command == "report":
        return _report(_status(api, options.model), options.html)
    status = _status(api, options.model) if options.command == "status" else _changed(api, options)
    if options.command == "forget":
        _print([*forgotten(status, options.version), ""])
    if options.watch:
        status = _watched(api, status)
    else:
        _print(screen(status, time.time()))
    return 1 if status.state in _FAILURES[options.command] else 0


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("nereid rollout", _ABOUT, _EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, text in _HELP.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_arguments(name, command)
    return parser


def add_arguments(name: str, command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL")
    _add_options(name, command)
    if name in ("promote", "pause", "abort", "rollback", "forget"):
        command.add_argument("--why", metavar="TEXT", help="a reason, for the history")
    add_server(command)


def _add_options(name: str, command: argparse.ArgumentParser) -> None:
    if name == "start":
        text = "version to roll out; by default the newest"
        command.add_argument("--candidate", type=positive, metavar="VERSION", help=text)
    if name in ("start", "set"):
        text = "share of the requests without a version"
        command.add_argument("--weight", type=percent, metavar="PERCENT", help=text)
        text = "fields as in rollout.yaml, instead of those of that file"
        command.add_argument("--spec", type=_fields, metavar="FILE", help=text)
    if name in ("rollback", "forget"):
        to, what = ("--to", "go back to") if name == "rollback" else ("--version", "forget")
        default = "what served before" if name == "rollback" else "all that were rejected"
        text = f"version to {what}; by default {default}"
        command.add_argument(to, type=positive, metavar="VERSION", dest="version", help=text)
    if name == "history":
        command.add_argument("--json", action="store_true", help="print it as the server answers")
    elif name == "report":
        command.add_argument("--html", metavar="FILE", help="write a page for a browser")
    else:
        command.add_argument("--watch", action="store_true", help="show the progress until it is over")


def _fields(path: str) -> dict[str, Any]:
    """Read a file of YAML, or JSON."""
    try:
        found = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{path} has no fields")
    return found


def _status(api: Api, model: str) -> RolloutStatus:
    answer = api.ask("GET", f"/v2/models/{quote(model, safe='')}/rollout")
    return msgspec.json.decode(answer, type=RolloutStatus)


def _changed(api: Api, options: argparse.Namespace) -> RolloutStatus:
    given: dict[str, Any] = {
        name: getattr(options, name, None) for name in ("candidate", "weight", "spec", "version")
    }
    why = (getattr(options, "why", None) or "")[:_MOST_WHY]
    body = msgspec.json.encode(RolloutChange(options.command, **given, why=why, user=_user()))
    path = f"/v2/repository/models/{quote(options.model, safe='')}/rollout"
    return msgspec.json.decode(api.ask("POST", path, body, _CHANGE_S), type=RolloutStatus)


def _user() -> str:
    """Return the name of this user, for the history of a server without tokens."""
    try:
        return getpass.getuser()[:_MOST_USER]
    except (KeyError, OSError):
        return ""


def _history(api: Api, options: argparse.Namespace) -> int:
    answer = api.ask("GET", f"/v2/models/{quote(options.model, safe='')}/rollout/history")
    if options.json:
        print(answer.decode())
    else:
        _print(history_lines(msgspec.json.decode(answer, type=RolloutHistory)))
    return 0


def _watched(api: Api, status: RolloutStatus) -> RolloutStatus:
    """Show the progress of a rollout until it, or one that replaces it, is over; return how it ended."""
    show = _Redrawn() if sys.stdout.isatty() else _Lines()
    show(status)
    missed = 0
    while not status.state.over:
        pause(_WATCH_S)
        try:
            status, missed = _status(api, status.model), 0
        except Unanswered:
            missed += 1
            if missed > _MOST_MISSED:
                raise
        else:
            show(status)
    return status


class _Redrawn:
    """Draws each status over the one before."""

    def __init__(self) -> None:
        self._height = 0

    def __call__(self, status: RolloutStatus) -> None:
        lines = screen(status, time.time())
        up = f"\x1b[{self._height}A\x1b[J" if self._height else ""
        sys.stdout.write(up)
        _print(lines)
        self._height = len(lines)


class _Lines:
    """Writes a line for each change, and one for the counts now and then."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()
        self._at = 0.0

    def __call__(self, status: RolloutStatus) -> None:
        change = (status.rollout, status.state, status.percent, status.reason)
        now = time.monotonic()
        if change != self._last or now - self._at >= _LINE_S:
            self._last, self._at = change, now
            _print([line(status)])


def _print(lines: Sequence[str]) -> None:
    """Print lines, without what would command the terminal: names and reasons are others' texts."""
    print("\n".join(map(printable, lines)), flush=True)


def _report(status: RolloutStatus, html: str | None) -> int:
    _print(comparison(status))
    if html:
        try:
            Path(html).write_text(page(status, time.time()))
        except OSError as error:
            print(f"{html}: {error.strerror}", file=sys.stderr)
            return 1
    return 0
