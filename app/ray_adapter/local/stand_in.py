"""Stands in for an agent of Ray, without importing Ray: `python -I -S stand_in.py COMMAND...`.

A raylet of Ray 2.60 starts two agents, waits for files with their ports, and ends when one of them ends. The
dashboard's agent is said to have no ports, as Ray's own minimal one does. That of runtime environments, which
only applications of other users need, is run in this process at the first connection to its port.
"""

import os
import select
import socket
import sys

_NO_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_STDIN = 0


def main(command: list[str]) -> None:
    """Stand in for the agent that a command would run, until the raylet closes its end of stdin."""
    options = dict(word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)
    if "runtime-env-agent-port" in options:
        _await_connection(command, options)
    else:
        for name in _NO_PORTS:
            _persist(name, -1, options)
    while os.read(_STDIN, 1):
        pass


def _await_connection(command: list[str], options: dict[str, str]) -> None:
    """Run the command at the first connection; return when the raylet has ended before."""
    address = options["node-ip-address"]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, int(options["runtime-env-agent-port"])))
        listener.listen()
        port = listener.getsockname()[1]
        _persist("runtime_env_agent_port", port, options)
        ready, _, _ = select.select([listener.fileno(), _STDIN], [], [])
    if _STDIN not in ready:
        # The raylet asks again when the connection that woke this process breaks.
        os.execv(command[0], [*command, f"--runtime-env-agent-port={port}"])


def _persist(name: str, port: int, options: dict[str, str]) -> None:
    """Write a port to the file where the raylet looks for it (`persist_port` of Ray's C++)."""
    path = os.path.join(options["session-dir"], f"{name}_{options['node-id']}")
    with open(f"{path}.new", "w") as file:
        file.write(str(port))
    os.rename(f"{path}.new", path)


if __name__ == "__main__":
    main(sys.argv[1:])
