"""`nereid-serve serve_config.yaml`: `serve run` that checks the settings first and drains at SIGTERM.

`serve run` alone is killed by SIGTERM, and with it the cluster that it started and every request in flight.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from app.ray_adapter.cluster import ClusterError, join_or_start, leave, run_serve_cli
from app.settings.check_config import check
from app.settings.errors import SettingsError


class Stop(BaseException):
    """Ends the process; neither an `Exception` nor an interrupt, which `serve run` handles itself."""


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stop


def main(argv: Sequence[str]) -> None:
    """Run `serve run` with these arguments; exit with 0 after a drain, 1 for wrong settings or no cluster."""
    try:
        for path in filter(Path.is_file, map(Path, argv)):
            check(path)
        # `serve run` would do it too, but `ray.init` sets signal handlers, which ours must replace.
        join_or_start(namespace="serve")
    except (ClusterError, SettingsError) as error:
        sys.exit(str(error))
    _serve(argv)


def _serve(argv: Sequence[str]) -> None:
    from app.main import APPLICATION

    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        run_serve_cli(["run", *argv])
    except Stop:
        leave(APPLICATION)


if __name__ == "__main__":
    main(sys.argv[1:])
