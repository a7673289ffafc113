"""Kills a machine of a cluster, cuts it off the network, drains it, and prints what clients of the other saw.

Two machines that are network namespaces of this one, `steady` on both, and 50 connections to the machine
that stays. Fails when more requests fail than were in flight, one that began a second later fails, one takes
longer than 6 s, or a drain fails any.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.long.namespaces import require
from tests.long.node_load import HEADER, NodeLoad, Row, judge
from tests.long.ray_nodes import REPLICA, Nodes, running
from tests.long.server import say
from tests.server import wait_until

CONNECTIONS: Final = 50
LONGEST_S: Final = 6.0
_DEAD_S: Final = 60.0
_DRAIN_S: Final = 20
_DRAINED: Final = "machine drained"
_BACK_S: Final = 90.0


def lose(nodes: Nodes, event: str, strike: Callable[[], None], least_s: float) -> Row:
    """Lose the worker, serve without it for a while, and bring it back; return what clients saw."""
    wait_until(nodes.whole, _BACK_S, "a replica on each machine")
    with NodeLoad(nodes.head.address, CONNECTIONS) as load:
        begun = time.monotonic()
        wait_until(lambda: min(load.answered_by(n, begun) for n in (2, 3)) > 200, 30.0, "both answer")
        at = time.monotonic()
        strike()
        time.sleep(least_s)
        wait_until(lambda: alive(nodes) == 1, _DEAD_S, "Ray gives the machine up")
        say(f"{event}: given up by Ray after {time.monotonic() - at:.1f} s")
        nodes.worker.switch_off()
        nodes.worker.join()
        nodes.worker.switch_on()
        nodes.start_ray(nodes.worker)
        wait_until(nodes.whole, _BACK_S, "a replica on each machine")
        back = time.monotonic()
        wait_until(lambda: load.answered_by(3, back) > 200, 30.0, "the machine answers again")
        return judge(event, load, at, time.monotonic())


def drain(nodes: Nodes) -> None:
    """Let Ray move everything off the worker, and switch it off."""
    (worker,) = (each["node_id"] for each in listed(nodes) if each["node_ip"] == nodes.worker.address)
    reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "maintenance")
    deadline = ("--deadline-remaining-seconds", str(_DRAIN_S))
    nodes.ray("ray", "drain-node", f"--node-id={worker}", *reason, *deadline)
    begun = time.monotonic()
    for title in (REPLICA, "ServeReplica:nereid:ingress"):
        wait_until(lambda title=title: not nodes.worker.processes(title), 2 * _DRAIN_S, title)  # type: ignore[misc]
        say(f"{title} has left after {time.monotonic() - begun:.1f} s")
    nodes.worker.switch_off()


def alive(nodes: Nodes) -> int:
    """Return the number of machines that Ray knows to be alive."""
    return len(listed(nodes))


def listed(nodes: Nodes) -> Any:
    """Return what Ray says of the machines that are alive."""
    return json.loads(nodes.ray("ray", "list", "nodes", "--filter", "state=ALIVE", "--format", "json"))


def faults(row: Row) -> list[str]:
    """Return what is worse than it may be."""
    found = []
    if row.failed > (0 if row.event == _DRAINED else row.in_flight):
        found.append(f"{row.event}: {row.failed} requests failed, {row.in_flight} were in flight")
    if row.later:
        found.append(f"{row.event}: {row.later} requests failed that began later")
    if row.longest_s > LONGEST_S:
        found.append(f"{row.event}: a request took {row.longest_s:.1f} s, {LONGEST_S:g} s are allowed")
    return found


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: sudo .venv/bin/python -m tests.long.node_loss",
    ).parse_args()
    require()
    with running({}) as nodes:
        rows = [
            lose(nodes, "machine killed", nodes.worker.switch_off, 8.0),
            lose(nodes, "network cut", nodes.worker.cut, 12.0),
            lose(nodes, _DRAINED, partial(drain, nodes), 8.0),
        ]
    say(HEADER)
    for row in rows:
        say(row.line())
        for text in row.failures:
            say(f"    {text}")
    if found := [fault for row in rows for fault in faults(row)]:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
