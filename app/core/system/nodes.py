"""The machines that a server runs on, and what else shows them."""

import os
import socket
from typing import NamedTuple


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
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    processors = float(len(os.sched_getaffinity(0)))
    return Machines((Node(socket.gethostname(), processors=processors, memory_bytes=memory),))
