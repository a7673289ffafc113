"""The machines that a server runs on, and what else shows them."""

import socket
from typing import NamedTuple

from app.core.system.cpus import available_cpus
from app.core.system.processes import total_memory


class Node(NamedTuple):
    """One machine.

    Attributes:
        name: of the host, or its address in the cluster.
        id: in the cluster; "" without one.
        alive: whether it answers the cluster.
        here: whether the process that tells this runs on it.
        head: whether it is the cluster's head.
        processors, gpus: that models may use.
        memory_bytes: that models may use; 0 if unknown.
    """

    name: str
    id: str = ""
    alive: bool = True
    here: bool = True
    head: bool = True
    processors: float = 0.0
    gpus: float = 0.0
    memory_bytes: float = 0.0


class Machines(NamedTuple):
    """The nodes of a server, and the address of Ray's dashboard, "" without one."""

    nodes: tuple[Node, ...]
    dashboard: str = ""


def this_machine() -> Machines:
    """Return the machine of a server of one process."""
    node = Node(socket.gethostname(), processors=available_cpus(), memory_bytes=total_memory())
    return Machines((node,))
