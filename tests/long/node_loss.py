"""Takes machines of a cluster away, and prints what clients of another one saw.

Three machines that are network namespaces of this one, models of two replicas that nothing places, and
50 connections to a machine that stays. Each machine is killed in turn, one is cut off, one hears nothing any
longer, one is drained. Fails when two replicas of a model lie on one machine, when more requests fail than
were in flight or one that began a second later fails, when one takes longer than 6 s, when a drain fails any,
when a machine that is back on the network does not serve again by itself, or leaves processes, and when
management does not answer within 10 s while a machine is cut off that has not the repository manager.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from tests.long.namespaces import Machine, require
from tests.long.node_load import HEADER, Management, NodeLoad, Row, ask, judge
from tests.long.plants import PLANTS
from tests.long.ray_nodes import RESTORED, Nodes, running
from tests.long.server import say
from tests.server import wait_until

CONNECTIONS: Final = 50
LONGEST_S: Final = 6.0
MANAGED_S: Final = 10.0
_AWAY_S: Final = 20.0
_DEAD_S: Final = 60.0
_DRAIN_S: Final = 20
_DRAINED: Final = "machine drained"
_BACK_S: Final = 180.0
_ORPHANS_S: Final = 60.0
_INGRESS: Final = "ServeReplica:nereid:ingress"


class NodeLoss:
    """Events on a cluster, and what is wrong about them.

    Args:
        nodes: the cluster.
        models: what it serves.
    """

    def __init__(self, nodes: Nodes, models: Sequence[str]) -> None:
        self.nodes = nodes
        self.models = models
        self.versions = [f"{model}:1" for model in models]
        self.rows: list[Row] = []
        self.wrong: list[str] = []

    def kill(self, machine: Machine) -> None:
        """Kill a machine, and switch it on again."""
        name = "head" if machine is self.nodes.head else "worker"
        with self._asked(f"{name} killed", machine) as asked:
            machine.switch_off()
            self._given_up(machine)
            machine.switch_on()
            self.nodes.start_ray(machine)
            asked.back(machine)

    def cut(self, event: str, strike: Callable[[Machine], None]) -> None:
        """Cut a worker off that has not the manager, and put it on the network again, and nothing else."""
        keeper, before = self.nodes.manager()
        machine = next(each for each in reversed(self.nodes.workers) if each is not keeper)
        with Management(keeper.address, self.models[0]) as management, self._asked(event, machine) as asked:
            time.sleep(2.0)
            struck = time.monotonic()
            strike(machine)
            time.sleep(_AWAY_S)
            self._given_up(machine)
            slowest, silent = management.judge(struck)
            _, after = self.nodes.manager()
            replaced = "" if after == before else ", the manager was replaced"
            say(f"{event}: slowest call {slowest:.1f} s, none answered for {silent:.1f} s{replaced}")
            if slowest > MANAGED_S:
                self.wrong.append(f"{event}: a management call took {slowest:.1f} s")
            if silent > MANAGED_S:
                self.wrong.append(f"{event}: management did not answer for {silent:.1f} s")
            self._heal(event, machine)
            asked.back(machine)

    def _heal(self, event: str, machine: Machine) -> None:
        left = {process.pid for process in machine.processes("ray::")} | {
            process.pid for process in machine.processes("nereid: ")
        }
        machine.join()
        took = wait_until(lambda: not _running(machine, left), _ORPHANS_S, f"{len(left)} orphans end")
        say(f"{event}: {len(left)} orphans have ended {took:.0f} s after the machine was back on the network")

    def drain(self) -> None:
        """Let Ray move everything off the worker with most replicas, switch it off and on."""
        places = [address for at in self.nodes.replicas().values() for address in at]
        machine = max(self.nodes.workers, key=lambda each: places.count(each.address))
        with self._asked(_DRAINED, machine) as asked:
            _drain(self.nodes, machine)
            time.sleep(8.0)
            self._given_up(machine)
            machine.switch_on()
            self.nodes.start_ray(machine)
            asked.back(machine)

    def scale(self) -> None:
        """Give models a third replica, by a load request."""
        models, versions = self.models[:4], self.versions[:4]
        address = self.nodes.head.address
        for model in models:
            file = self.nodes.models / model / "config.pbtxt"
            file.write_text(file.read_text().replace('"2"', '"3"'))
            Management.load(address, model)
        self.expect_spread("scaled up", versions, 3)

    def expect_spread(self, event: str, versions: Sequence[str], count: int = 2) -> None:
        """Note it as wrong if versions are not on so many machines soon."""
        try:
            wait_until(lambda: self.nodes.whole(*versions, count=count), _BACK_S, "spread")
        except AssertionError:
            found = self.nodes.unspread(*versions, count=count)
            text = f"{event}: not on {count} machines each after {_BACK_S:.0f} s"
            self.wrong.append(f"{text}: {found or 'not ready'}")

    def _asked(self, event: str, machine: Machine) -> "_Asked":
        self.expect_spread(f"before: {event}", self.versions)
        other = next(each for each in self.nodes.machines if each is not machine)
        return _Asked(self, event, other)

    def _given_up(self, machine: Machine) -> None:
        if machine is self.nodes.head:
            time.sleep(_AWAY_S)
            return
        others = len(self.nodes.machines) - 1
        wait_until(lambda: len(_alive(self.nodes)) == others, _DEAD_S, "Ray gives the machine up")


class _Asked:
    """Clients of another machine during an event, which is judged when the block ends."""

    def __init__(self, losses: NodeLoss, event: str, asked: Machine) -> None:
        self._losses, self._event = losses, event
        self._load = NodeLoad(asked.address, CONNECTIONS, losses.models)
        self._at = 0.0

    def __enter__(self) -> "_Asked":
        self._load.__enter__()
        begun = time.monotonic()
        wait_until(lambda: self._load.answered_since(begun) > 1000, 30.0, "answers")
        self._at = time.monotonic()
        return self

    def back(self, machine: Machine) -> None:
        """Wait until replicas are spread again, and ask for every model at a machine."""
        self._losses.expect_spread(f"after: {self._event}", self._losses.versions)
        for model in self._losses.models:
            if (answered := ask(machine.address, model)) != "":
                self._losses.wrong.append(f"{self._event}: {model} at {machine.address}: {answered}")

    def __exit__(self, kind: object, *_: object) -> None:
        self._load.__exit__()
        if kind is None:
            row = judge(self._event, self._load, self._at, time.monotonic())
            say(row.line())
            self._losses.rows.append(row)
            self._losses.wrong += faults(row)


def _running(machine: Machine, pids: set[int]) -> bool:
    time.sleep(0.5)
    return any(process.pid in pids for process in machine.processes(""))


def _drain(nodes: Nodes, machine: Machine) -> None:
    (node,) = (each["node_id"] for each in _alive(nodes) if each["node_ip"] == machine.address)
    reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "maintenance")
    deadline = ("--deadline-remaining-seconds", str(_DRAIN_S))
    nodes.ray("ray", "drain-node", f"--node-id={node}", *reason, *deadline)
    begun = time.monotonic()
    for title in ("ServeReplica:pair", _INGRESS):
        wait_until(lambda title=title: not machine.processes(title), 2 * _DRAIN_S, title)  # type: ignore[misc]
        say(f"{title} has left after {time.monotonic() - begun:.1f} s")
    machine.switch_off()


def _alive(nodes: Nodes) -> Any:
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


def run(only: Sequence[str], number: int, plant: str) -> NodeLoss:
    """Run the events of these names, by default all, on a cluster with so many models."""
    models = [f"pair{each}" for each in range(number)]
    with running(RESTORED, workers=2, models=models, plant=plant) as nodes:
        losses = NodeLoss(nodes, models)
        events: dict[str, list[Callable[[], None]]] = {
            "kill": [partial(losses.kill, machine) for machine in reversed(nodes.machines)],
            "cut": [partial(losses.cut, "network cut", Machine.cut)],
            "deaf": [partial(losses.cut, "hears nothing", Machine.deafen)],
            "drain": [losses.drain],
            "scale": [losses.scale],
        }
        for name in only or events:
            for call in events[name]:
                call()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: sudo .venv/bin/python -m tests.long.node_loss",
    )
    names = ("kill", "cut", "deaf", "drain", "scale")
    parser.add_argument("--only", action="append", choices=names, default=[], help="may be repeated")
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--plant", default="", choices=list(PLANTS), help="a fault that is to be found")
    given = parser.parse_args()
    require()
    losses = run(given.only, given.models, given.plant)
    say(HEADER)
    for row in losses.rows:
        say(row.line())
        for text in row.failures:
            say(f"    {text}")
    if losses.wrong:
        sys.exit("\n".join(losses.wrong))


if __name__ == "__main__":
    main()
