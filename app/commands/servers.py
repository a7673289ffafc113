"""The choice of a running server, for commands about one."""

import argparse
import sys

from app.console.server_record import ServerRecord, running_servers


def add_pid(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses among several servers."""
    parser.add_argument("--pid", type=int, help="the server's process, if this user runs several")


def chosen(pid: int | None) -> ServerRecord | None:
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
