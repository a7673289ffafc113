"""`python -m app.serve_run serve_config.yaml`: Serve's own `serve run`, which drains when it is told to stop.

`serve run` alone dies of SIGTERM, and with it the cluster it has started, whatever requests are under way.
"""

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from app.ray_cluster import ClusterError, join_or_start


class Stop(BaseException):
    """The process is to end; neither an `Exception` nor an interrupt, which `serve run` handles itself."""


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stop


def main(argv: Sequence[str]) -> None:
    """Take the arguments of `serve run`; end with status 0 after a drain, 1 without a cluster."""
    try:
        # As `serve run` would; but that sets signal handlers, which ours must follow.
        join_or_start(namespace="serve")
    except ClusterError as error:
        sys.exit(str(error))
    import ray
    from ray import serve
    from ray.serve.scripts import cli

    from app.main import APPLICATION

    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        cli(["run", *argv], standalone_mode=False)
    except Stop:
        # The ingress first: it answers what is under way while the models still run.
        serve.delete(APPLICATION)
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
