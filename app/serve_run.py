"""`nereid-serve serve_config.yaml`: `serve run` that checks the settings first and drains at SIGTERM.

`serve run` alone dies of SIGTERM, and with it the cluster that it has started and every request in flight.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from app.ray_cluster import ClusterError, join_or_start
from app.settings.check_config import check
from app.settings.flags import SettingsError


class Stop(BaseException):
    """The process is to end; neither an `Exception` nor an interrupt, which `serve run` handles itself."""


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stop


def main(argv: Sequence[str]) -> None:
    """Run `serve run` with these arguments; exit with 0 after a drain, 1 for wrong settings or no cluster."""
    try:
        for path in filter(Path.is_file, map(Path, argv)):
            check(path)
        # As `serve run` would; but that sets signal handlers, which ours must follow.
        join_or_start(namespace="serve")
    except (ClusterError, SettingsError) as error:
        sys.exit(str(error))
    _serve(argv)


def _serve(argv: Sequence[str]) -> None:
    import ray
    from ray import serve
    from ray.serve.scripts import cli

    from app.main import APPLICATION

    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        cli(["run", *argv], standalone_mode=False)
    except Stop:
        # The ingress first: it answers requests in flight while the models still run.
        serve.delete(APPLICATION)
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
