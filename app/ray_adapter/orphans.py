"""Ends this process after its raylet, without which it is on no table and none of its requests are new."""

import os
import select
import sys
import threading
import time

from app.core.system.processes import kill_descendants

_GRACE_S = 10.0
"""For requests in flight, and for Ray, which mostly ends it before."""


def starter() -> int:
    """Return the process that has started Ray's processes of this node: a raylet, or the program of a server.

    Workers of the server's own fork server have that program for their raylet (`local/fork_server.py`).
    """
    return int(os.environ.get("RAY_RAYLET_PID") or os.getppid())


def end_with_raylet() -> None:
    """End this process, and all below it, when Ray's process of its node has ended.

    Ray 2.60 ends the raylet of a node that was given up, as soon as the node hears of it. Its workers look
    whether there is a process with the raylet's id: where nobody collects its exit status, as in a container
    whose first process does not, there is one for ever, and they keep their memory and GPUs.
    """
    raylet = os.environ.get("RAY_RAYLET_PID")
    if raylet is not None:
        thread = threading.Thread(target=_wait, args=(int(raylet),), name="raylet", daemon=True)
        thread.start()


def _wait(raylet: int) -> None:
    poll = select.poll()
    try:
        poll.register(os.pidfd_open(raylet), select.POLLIN)
        poll.poll()  # without an end, and without a look at it
    except ProcessLookupError:
        pass
    time.sleep(_GRACE_S)
    print("Ray's raylet has ended: ending this process too", file=sys.stderr, flush=True)
    kill_descendants()
    os._exit(1)
