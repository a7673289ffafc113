"""The command lines of `nereid`, which has the commands of `nereid/commands` too, and of `tritonserver`."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from app.core.installed.installation import server_version
from app.settings.command_line import collect, spelling, split, typed
from app.settings.flag.errors import SettingsError
from app.settings.flag.flags import Setting, by_heading
from app.settings.flag.ignored import IGNORED
from app.settings.load import from_args
from app.settings.settings import SETTINGS, ServerSettings
from nereid.commands.table import COMMANDS, Command

HINT: Final = "Usage: nereid --model-repository=DIRECTORY [--FLAG=VALUE ...]\nAll flags: nereid --help"

TRITONSERVER: Final = "tritonserver"
"""The command for what starts Triton's server: scripts, compose files, model_analyzer."""
LISTEN_ADDRESS: Final = "TRITONSERVER_ADDRESS"
"""The variable with the address on which `tritonserver` listens by default, which Triton's does on all."""

_SERVES: Final = ("serve", "server", "start", "run", "up", "launch", "tritonserver")
"""What people call serving, which is what `nereid` does without a command."""
_ALONE: Final = ("help", "version")
"""Flags that print a text instead of running the server."""


class TextRequested(Exception):
    """The user asked for a text, which is the argument."""


def parse(argv: Sequence[str], program: str = "nereid") -> ServerSettings:
    """Read a command line, without the program's name, which texts have.

    Raises:
        TextRequested: `--help`, `-h` or `--version` was given.
        SettingsError: a flag or value that cannot be used.
    """
    return from_args(collect(_flags(argv, program)), spelling)


def _flags(argv: Sequence[str], program: str) -> Iterator[tuple[str, str]]:
    for name, value in split(argv, _ALONE):
        if name in _ALONE:
            raise TextRequested(usage(program) if name == "help" else f"nereid {server_version()}")
        if not name:
            hint = _meant(value, argv) if program != TRITONSERVER else ""
            raise SettingsError(f"Unexpected argument: {value}{hint}")
        yield name, value


def _meant(word: str, argv: Sequence[str]) -> str:
    """Return "; did you mean ..." for a word that is no flag: a repository, or the name of a command."""
    if word in _SERVES:
        places = [each for each in argv if not each.startswith("-") and each != word]
        return f"; did you mean 'nereid --model-repository={places[0] if places else 'DIRECTORY'}'?"
    if Path(word).is_dir() or "://" in word:
        return f"; did you mean 'nereid --model-repository={word}'?"
    close = get_close_matches(word, COMMANDS, n=1)
    return f"; did you mean 'nereid {close[0]}'?" if close else ""


def usage(program: str = "nereid") -> str:
    """Return the text of `--help`."""
    if program == TRITONSERVER:
        lines = [f"Usage: {TRITONSERVER} [options]", "  --help", "\tPrint usage"]
    else:
        lines = [HINT.splitlines()[0], "", "Commands, which tell more by --help: nereid COMMAND ..."]
        for name, command in COMMANDS.items():
            lines += [f"  {name}", f"\t{command.help}"]
    groups = by_heading(SETTINGS.values()) | {"Accepted, without effect": list(IGNORED.values())}
    for heading, settings in groups.items():
        lines += ["", f"{heading}:"]
        for setting in settings:
            lines += _described(setting)
    return "\n".join(lines)


def _described(setting: Setting) -> list[str]:
    kind = "" if setting.flag.bare else f" <{_kind(setting)}>"
    return [f"  {spelling(setting.name)}{kind}", f"\t{setting.flag.help}{_default(setting)}"]


def _kind(setting: Setting) -> str:
    if setting.flag.choices:
        return "|".join(setting.flag.choices)
    return {bool: "boolean", int: "integer", float: "float"}.get(setting.type, "string")


def _default(setting: Setting) -> str:
    if setting.flag.bare or setting.default in ("", ()):
        return ""
    default = str(setting.default).lower() if isinstance(setting.default, bool) else setting.default
    return f" Default: {default}."


def _print(text: str) -> None:
    with _closed_pipe():
        print(text, flush=True)


@contextmanager
def _closed_pipe() -> Iterator[None]:
    """End quietly when `head`, say, has read enough."""
    try:
        yield
    except BrokenPipeError:
        # Python would fail once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(command: Command, argv: Sequence[str]) -> int:
    """Run a command; return its exit status: 1 when its reader went away, 130 after Ctrl-C."""
    from nereid_client.tools.output import until_read_enough

    with until_read_enough():
        try:
            return command.run(argv, main)
        except KeyboardInterrupt:
            return 130


def main(argv: Sequence[str] | None = None) -> None:
    """Run the server, or a command of another name; exit with status 1 for a wrong command line."""
    words = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a report must not end the program
    if words and words[0] in COMMANDS:
        _require_typed(words)
        sys.exit(_run(COMMANDS[words[0]], words[1:]))
    if words and words[0] == TRITONSERVER:
        tritonserver(words[1:])
        return
    try:
        settings = parse(words)
    except TextRequested as requested:
        _print(str(requested))
        return
    except SettingsError as error:
        sys.exit(f"{error}\n{HINT}")
    _serve(settings)


def _require_typed(words: Sequence[str]) -> None:
    try:
        for word in words:
            typed(word)
    except SettingsError as error:
        sys.exit(str(error))


def tritonserver(argv: Sequence[str] | None = None) -> None:
    """Run the server as Triton's program: by flags alone, with its texts and its status 1 after `--help`."""
    words = sys.argv[1:] if argv is None else argv
    address = os.environ.get(LISTEN_ADDRESS, "")
    listen = [f"--{front}-address={address}" for front in ("http", "grpc")] if address else []
    try:
        settings = parse([*listen, *words], TRITONSERVER)
    except TextRequested as requested:
        _print(str(requested))
        sys.exit(1)
    except SettingsError as error:
        sys.exit(
            f"{TRITONSERVER}: {error}\nUsage: {TRITONSERVER} [options]\nAll options: {TRITONSERVER} --help"
        )
    _serve(settings)


def _serve(settings: ServerSettings) -> None:
    for warning in settings.warnings:
        print(warning, file=sys.stderr)
    from app.ray_adapter.cluster import ClusterError
    from nereid.server.launcher import run

    try:
        sys.exit(run(settings))
    except (ClusterError, SettingsError) as error:
        sys.exit(str(error))
