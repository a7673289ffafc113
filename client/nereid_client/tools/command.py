"""The command `nereid-client`: tools that ask a server as its client, where no server is installed."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from nereid_client.tools.output import until_read_enough

_MODULES: Final[Mapping[str, str]] = {
    "analyze": "nereid_client.tools.analyze.command",
    "feedback": "nereid_client.tools.feedback",
    "perf": "nereid_client.tools.perf.command.run",
    "plan": "nereid_client.tools.plan.command",
    "replay": "nereid_client.tools.replay.command",
}


def main() -> None:
    """Run a tool, by the first word of the command line."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _MODULES:
        sys.exit(f"Usage: nereid-client {{{','.join(_MODULES)}}} ..., each with --help")
    try:
        tool = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        sys.exit(f"nereid-client {name}: {error}: it needs the extra, pip install 'nereid-client[tools]'")
    with until_read_enough():
        status = tool.main(sys.argv[2:])
    sys.exit(status)
