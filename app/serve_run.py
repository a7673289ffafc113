"""`nereid-serve serve_config.yaml`: `serve run` that checks the settings first and drains at SIGTERM.

`serve run` alone is killed by SIGTERM, and with it the cluster that it started and every request in flight.
"""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from app.console.console import Console
from app.ray_adapter.cluster import ClusterError, join_or_start, leave, run_serve_cli
from app.settings.check_config import check
from app.settings.errors import SettingsError

_POLL_S = 0.2


class Stop(BaseException):
    """Ends the process; neither an `Exception` nor an interrupt, which `serve run` handles itself."""


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stop


def main(argv: Sequence[str]) -> None:
    """Run `serve run` with these arguments; exit with 0 after a drain, 1 for wrong settings or no cluster."""
    try:
        servers = [settings for path in filter(Path.is_file, map(Path, argv)) for settings in check(path)]
        console = Console(servers[0]) if servers else None
        # `serve run` would do it too, but `ray.init` sets signal handlers, which ours must replace.
        with console.ray_start() if console else nullcontext():
            join_or_start(namespace="serve", configure_logging=console is None)
    except (ClusterError, SettingsError) as error:
        sys.exit(str(error))
    if console:
        threading.Thread(target=_announce, args=(console,), name="announce", daemon=True).start()
    _serve(argv, verbose=console is None or servers[0].cluster.log_ray)


def _announce(console: Console) -> None:
    """Print the banner when the models of the start are loaded."""
    from app.main import routing_table

    while True:
        try:
            table = routing_table()
        except Exception:  # Serve has not started the application yet, or stops it already
            pass
        else:
            if table.initialised or table.failed:
                return console.ready(table)
        time.sleep(_POLL_S)


def _serve(argv: Sequence[str], verbose: bool) -> None:
    from app.main import APPLICATION

    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        run_serve_cli(["run", *argv], verbose)
    except Stop:
        leave(APPLICATION)


if __name__ == "__main__":
    main(sys.argv[1:])
