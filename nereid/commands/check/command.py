"""`nereid check`: what a server would say of the models of a repository, without starting one."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from nereid.commands.columns import columns
from nereid_client.tools.arguments import command_parser

if TYPE_CHECKING:
    from nereid.commands.check.trial import Verdict

_ABOUT: Final = "Check configurations and files of the models of repositories, without serving them."
_EXAMPLE: Final = """example: nereid check /path/to/models

Models of ONNX Runtime, PyTorch, OpenVINO and trees are loaded, on the CPU, which executes no code of theirs.
Of others the files are read: Python is compiled, not run; libraries and weights are not loaded.
The exit status is 0 when every model passes, 1 when one does not, 2 when there is nothing to check."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = command_parser("nereid check", _ABOUT, _EXAMPLE)
    parser.add_argument("repository", nargs="+", metavar="REPOSITORY", help="a directory of models")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")
    parser.add_argument("--backend-directory", help="as of the server")
    parser.add_argument("--model-config-name", help="as of the server")
    parser.add_argument("--backend-config", action="append", help="as of the server; may be repeated")
    arguments = vars(parser.parse_args(argv))
    as_json, repositories = arguments.pop("json"), arguments.pop("repository")
    try:
        settings = from_args({"model_repository": repositories, **arguments})
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    verdicts = check(settings)
    print(_json(verdicts) if as_json else _table(verdicts))
    if not verdicts:
        return 2
    return 1 if any(verdict.reason for verdict in verdicts) else 0


def check(settings: ServerSettings) -> "list[Verdict]":
    """Return a verdict for each model of the repositories, by name."""
    from nereid.commands.check.trial import Trial

    return Trial(settings).verdicts()


def _json(verdicts: "Iterable[Verdict]") -> str:
    found = [
        {"model": each.model, "ok": not each.reason, "reason": each.reason, "warnings": each.warnings}
        for each in verdicts
    ]
    return json.dumps(found, indent=2, ensure_ascii=False)


def _table(verdicts: "Sequence[Verdict]") -> str:
    if not verdicts:
        return "no models"
    failed = [each for each in verdicts if each.reason]
    rows = [("model", "result"), *((each.model, "failed" if each.reason else "ok") for each in verdicts)]
    reasons = [f"\n{each.model}: {each.reason.strip()}" for each in failed]
    warnings = [f"\n{each.model}: warning: {text}" for each in verdicts for text in each.warnings]
    counted = f"\n{len(verdicts) - len(failed)} of {len(verdicts)} models pass"
    return "\n".join([columns(rows), *reasons, *warnings, counted])
