"""`nereid-serve serve_config.yaml`: `serve run` that checks the settings first and drains at SIGTERM.

`serve run` alone is killed by SIGTERM, and with it the cluster that it started and every request in flight.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from app.ray_adapter.cluster import ClusterError, join_or_start, run_serve_cli
from app.ray_adapter.supervision import Supervisor
from app.settings.flag.errors import SettingsError
from app.settings.settings import GeneralSettings
from nereid import workers
from nereid.console.console import Console
from nereid.console.systemd import notify
from nereid.controller import CALLBACK
from nereid.server.check_config import check

_HELP = """Usage: nereid-serve [OPTIONS] CONFIGURATION, for example: nereid-serve serve_config.yaml

`serve run` that checks the settings of the server first, and drains at SIGTERM. The rest is its own help.
"""
_SWITCHES = ("--blocking", "--non-blocking", "-r", "--reload")
"""Options of `serve run` of Ray 2.60 without a value."""
_POLL_S = 0.2
_EXIT_TIMEOUT_S = GeneralSettings().exit_timeout_s


class Stop(BaseException):
    """Ends the process; neither an `Exception` nor an interrupt, which `serve run` handles itself."""


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stop


def _arguments(argv: Sequence[str]) -> list[str]:
    """Return the words that are neither options of `serve run` nor their values."""
    before = ["", *argv]
    return [
        word
        for last, word in zip(before, argv, strict=False)
        if not word.startswith("-") and (not last.startswith("-") or last in _SWITCHES or "=" in last)
    ]


def _configurations(argv: Sequence[str]) -> list[Path]:
    """Return the files that the arguments name; exit if one is a directory, or is not there."""
    words = _arguments(argv)
    for word in words:
        if Path(word).is_dir():
            text = "is a directory, not a configuration of Ray Serve"
            sys.exit(f"'{word}' {text}; for models in it: nereid --model-repository={word}")
        if word.endswith((".yaml", ".yml")) and not word.startswith("-") and not Path(word).is_file():
            sys.exit(f"there is no file '{word}'")
    return [path for path in map(Path, words) if path.is_file()]


def main(argv: Sequence[str]) -> None:
    """Run `serve run` with these arguments.

    `--help` starts nothing. Exits with 0 after a drain; with 1 for wrong settings, without its file or a
    cluster, and when a model of the start fails and `exit_on_error` is set.
    """
    if not {"-h", "--help"}.isdisjoint(argv):
        print(_HELP)
        return run_serve_cli(["run", "--help"])
    try:
        servers = [settings for path in _configurations(argv) for settings in check(path)]
        console = Console(servers[0]) if servers else None
        forks = all(settings.cluster.fork_workers for settings in servers)
        # `serve run` would do it too, but `ray.init` sets signal handlers, which ours must replace.
        with console.ray_start() if console else nullcontext():
            owned = join_or_start(
                namespace="serve",
                configure_logging=console is None,
                include_dashboard=any(settings.cluster.allow_dashboard for settings in servers),
                controller=CALLBACK,
                workers=workers.__name__ if forks else "",
                meanwhile=("fastapi", "app.ray_adapter.local.lean_serve", "nereid.server.main"),
            )
    except (ClusterError, SettingsError) as error:
        sys.exit(str(error))
    from nereid.server.main import APPLICATION

    exit_timeouts = [settings.server.exit_timeout_s for settings in servers]
    supervisor = Supervisor(owned, APPLICATION, max(exit_timeouts, default=_EXIT_TIMEOUT_S))
    failed = threading.Event()
    if console:
        arguments = console, supervisor, failed
        threading.Thread(target=_announce, args=arguments, name="announce", daemon=True).start()
    _serve(argv, supervisor, verbose=console is None or servers[0].cluster.log_ray)
    sys.exit(int(failed.is_set()))


def _announce(console: Console, supervisor: Supervisor, failed: threading.Event) -> None:
    """Print the banner when the models of the start are loaded; stop the program when it is not to go on."""
    from nereid.server.main import routing_table

    while True:
        console.loading()
        try:
            table = routing_table()
        except Exception:  # Serve has not started the application yet, or stops it already
            pass
        else:
            if table.initialised or table.failed:
                supervisor.ready()
                if not console.ended(table):
                    failed.set()
                    os.kill(os.getpid(), signal.SIGTERM)
                return
        time.sleep(_POLL_S)


def _serve(argv: Sequence[str], supervisor: Supervisor, verbose: bool) -> None:
    from nereid.server.main import is_ours

    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        run_serve_cli(["run", *argv], verbose)
    except Stop:
        notify(STOPPING=1)
        supervisor.leave(is_ours)
