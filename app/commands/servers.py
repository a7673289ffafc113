"""The choice of a running server, for commands about one."""

import argparse
import sys
from collections.abc import Sequence

from app.console.server_record import ServerRecord, running_servers


def chosen_server(command: str, about: str, example: str, argv: Sequence[str]) -> ServerRecord | None:
    """Parse the arguments of a command about one server; return the server, or print why there is none."""
    parser = argparse.ArgumentParser(prog=f"nereid {command}", description=about, epilog=example)
    parser.add_argument("--pid", type=int, help="the server's process, if this user runs several")
    return _chosen(parser.parse_args(argv).pid)


def _chosen(pid: int | None) -> ServerRecord | None:
    """Return the server with this pid, or the only one; print why there is none."""
    servers = [server for server in running_servers() if pid in (None, server.pid)]
    if len(servers) == 1:
        return servers[0]
    if servers:
        print("several servers run; choose one:", file=sys.stderr)
        for server in servers:
            print(f"  --pid={server.pid}  {server.http} {' '.join(server.repositories)}", file=sys.stderr)
    else:
        which = (
            "no server of this user runs here" if pid is None else f"process {pid} is no server of this user"
        )
        print(f"{which}; start one: nereid --model-repository=DIRECTORY", file=sys.stderr)
    return None
