"""`nereid dev`: the models of a repository in one process, loaded again when their files are saved."""

import argparse
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Final

from app.settings.command_line import collect, spelling, split
from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.ports import check_ports
from app.settings.settings import ServerSettings
from deployments.environments.progress import work

if TYPE_CHECKING:
    from nereid.engine.engine import Engine
    from nereid.engine.watch import Change

_ABOUT: Final = "Serve models in one process, and load them again when their files are saved."
_EXAMPLE: Final = """example: nereid dev /path/to/models --http-port=9000

All of the server's flags may follow. Models share the process: a crash of one ends it."""
_DEFAULTS: Final[dict[str, object]] = {
    "model_control_mode": "explicit",
    "exit_on_error": "false",
    "log_info": "false",
}
_GRACE_S: Final = 1.0
_SHOWN: Final = 5
_PATIENCE_S: Final = 3.0


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="nereid dev",
        description=_ABOUT,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("repository", nargs="*", metavar="REPOSITORY", help="a directory of models")
    if {"-h", "--help"} & set(argv):
        parser.parse_args(["--help"])
    try:
        settings = settings_of(argv)
        check_ports(settings)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    faulthandler.enable()  # a crash of a model is one of this process
    sys.argv = [""]  # as in Triton's stub: a model that parses arguments must not find ours
    return serve(settings, _stop_on_signal())


def settings_of(argv: Sequence[str]) -> ServerSettings:
    """Return the settings of the command line: of a server that serves all it can.

    Raises:
        SettingsError: a flag or value that cannot be used, or no repository.
    """
    flags = list(split(argv))
    given = collect(pair for pair in flags if pair[0])
    repositories = [word for name, word in flags if name in ("", "model_repository")]
    if not repositories:
        raise SettingsError("Name the directory of models: nereid dev REPOSITORY")
    for repository in repositories:
        if "://" not in repository and not Path(repository).is_dir():
            raise SettingsError(f"there is no directory '{repository}'")
    found = {**_DEFAULTS, **given, "model_repository": repositories}
    if found["model_control_mode"] == "explicit":
        found.setdefault("load_model", ["*"])
    return from_args(found, spelling)


def serve(settings: ServerSettings, stop: threading.Event) -> int:
    """Serve until `stop` is set; return the exit status."""
    from app.core.files.private_files import require_home
    from app.core.observability.log import configure_logging
    from nereid.console import messages
    from nereid.console.beside import console_beside
    from nereid.engine.engine import Engine
    from nereid.engine.fronts import Fronts
    from nereid.engine.watch import Watch

    started = time.monotonic()
    require_home()
    print(messages.starting(settings), flush=True)
    configure_logging(settings.log)
    logging.getLogger("deployments.manager").setLevel(logging.CRITICAL)  # what it would say is printed here
    engine = Engine(settings, lends_loop=False)
    threading.Thread(target=_tell_progress, args=(engine,), name="progress", daemon=True).start()
    try:
        engine.start()
        fronts = Fronts(engine)
        fronts.open()
        table = engine.table
        print(messages.ready(settings, table, time.monotonic() - started, "", os.getpid()))
        print(f"One process of {_memory_mb():.0f} MB. Saved files are loaded at once.", flush=True)
        engine.own_process()
        with console_beside(settings):
            Watch(engine, _print_change).run(stop)
        fronts.close(_GRACE_S)
    finally:
        engine.close()
    return 0


def _tell_progress(engine: "Engine") -> None:
    """Print every few seconds what is waited for: the models of the start, environments that are made."""
    while True:
        time.sleep(_PATIENCE_S)
        loading = [] if engine.repository.lifecycle.initialised else engine.repository.loading
        if waiting := [*(f"loading {name}" for name in loading[:_SHOWN]), *work()]:
            print(f"{time.strftime('%H:%M:%S')} {', '.join(waiting)}", flush=True)


def described(change: "Change") -> str:
    """Return what has changed, and what has become of it."""
    applied = change.applied
    if not applied.present:
        return f"{applied.name}: removed, and unloaded"
    # None is known of a change between the load and the first look at the files.
    what = f"{applied.name}: {_listed(change.files) or 'files'} changed"
    if not applied.error:
        return f"{what}; loaded in {applied.seconds:.2f} s"
    rest = "what was loaded before is still served" if change.served else "it is not served"
    return (
        f"{what}; NOT loaded, {rest}. Save it again when it is mended:\n{indent(applied.error.strip(), '  ')}"
    )


def _listed(files: Sequence[str]) -> str:
    shown = ", ".join(files[:_SHOWN])
    return shown + (f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else "")


def _print_change(change: "Change") -> None:
    print(f"{time.strftime('%H:%M:%S')} {described(change)}", flush=True)


def _memory_mb() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _stop_on_signal() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    os.register_at_fork(after_in_child=_end_on_signals)
    return stop


def _end_on_signals() -> None:
    """End by signals in a process that a model has forked, a worker of `multiprocessing` for example."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
