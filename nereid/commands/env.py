"""`nereid env`: print what `ray status` and `serve status` need to reach a running server."""

import shlex
import sys
from collections.abc import Sequence
from typing import Final

from nereid.commands.servers import chosen_server
from nereid.internals import ROOT

_ABOUT: Final = "Print the variables with which Ray's commands reach the cluster of a running server."
_EXAMPLE: Final = 'example: eval "$(nereid env)" && serve status'
_NO_DASHBOARD: Final = "ray status and serve status need a server with --allow-dashboard=true"
_PATH: Final = "export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}%s"
"""Of Ray 2.60, `serve status` imports the request router of every deployment (`RequestRouterConfig`)."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    server = chosen_server("env", _ABOUT, _EXAMPLE, argv)
    if server is None:
        return 1
    for name, value in server.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    print(_PATH % shlex.quote(str(ROOT)))
    print(f"# data plane: {server.data_plane}")
    if not server.dashboard:
        print(_NO_DASHBOARD, file=sys.stderr)
    return 0
