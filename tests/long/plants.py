"""Changes that are planted in a copy of the server: most are faults, to see that the long suites find them.

`--plant NAME` of a suite starts the server from that copy; the suite has to end with 1.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.server import ROOT

_PACKAGES: Final = ("app", "backends", "client", "deployments", "nereid")


class Change(NamedTuple):
    """A text of one file, what stands there instead, and what is added to the end of the file."""

    path: str
    text: str
    instead: str
    added: str = ""


PLANTS: Final = {
    # A candidate's answers of now beside the stable version's of its fastest second.
    "old-interval": (
        Change(
            "deployments/rollout/judging/intervals.py",
            "compare_answers(rules.latency, pending.stable, pending.candidate)",
            "compare_answers(rules.latency, _fastest(pending.stable), pending.candidate)",
            """

_FASTEST: list[Times] = []

def _fastest(stable: Times) -> Times:
    if sum(stable.values()) < MIN_STABLE:
        return stable
    _FASTEST[:] = [min([*_FASTEST, stable], key=lambda times: quantile_position(times, 0.95))]
    return _FASTEST[0]
""",
        ),
    ),
    "missing-output": (
        Change(
            "app/rollout/answer.py", "if response.final and self._missing:", "if False and self._missing:"
        ),
    ),
    # A rollout that costs the stable version's clients 20 ms.
    "late-answers": (
        Change(
            "app/rollout/counted_call.py",
            "        self.deliver(response)",
            "        asyncio.get_running_loop().call_later(0.02, self.deliver, response)",
            "import asyncio\n",
        ),
    ),
    # Requests in flight are not watched.
    "hang": (
        Change(
            "app/rollout/flights.py",
            "        self.sweep()\n        self._due = None",
            "        self._due = None",
        ),
    ),
    # Replicas lie on one machine, and are not moved from there.
    "packed": (
        Change(
            "app/ray_adapter/serve/placement.py",
            "(-each.own if packed else each.own, each.all",
            "(-each.own, each.all",
        ),
        Change(
            "deployments/manager/serve/spreading.py", "    return bool(nodes) and", "    return False and"
        ),
    ),
    # A machine does not serve while the head is away.
    "unready": (
        Change(
            "app/ingress/cluster_report.py",
            '            logger.error("models are served, but not loaded',
            "            self._service.cluster_fault = fault\n"
            '            logger.error("models are served, but not loaded',
        ),
    ),
    "slow-scaling": (
        Change("deployments/scaling/policy.py", "PERIOD_S: Final = 0.5", "PERIOD_S: Final = 5.0"),
    ),
    # No fault: requests of clients are counted in some turns, and not in others (`tests/long/cost_rate.py`).
    "costs-in-turns": (
        Change(
            "app/ingress/deployment.py",
            "        cost = make_account(",
            "        CostTurns(router).change()\n        cost = make_account(",
            """

class CostTurns:
    def __init__(self, router):
        self._router, self._loop, self._counted = router, asyncio.get_running_loop(), {}

    def change(self):
        number = int(self._loop.time() / 0.02)
        counts = (zlib.crc32(b"%d" % (number // 2)) ^ number) & 1
        for entry in self._router.table.entries:
            counted = self._counted.setdefault(id(entry), (entry, entry.target))[1]
            vars(entry)["target"] = counted if counts else entry.route
        self._loop.call_at(0.02 * (number + 1) + 1e-5, self.change)


import zlib
""",
        ),
    ),
    # No model makes room.
    "kept-models": (
        Change("deployments/residency/eviction.py", "if not model.kept and model.nbytes > 0:", "if False:"),
    ),
}


@contextmanager
def planted(name: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the directory of a server with a fault ("": without one), and variables of its environment."""
    if name not in PLANTS:
        yield ROOT, {}
        return
    # Not below /tmp, which each machine of some suites has for itself.
    with tempfile.TemporaryDirectory(prefix="np", dir="/var/tmp") as directory:
        for package in _PACKAGES:
            shutil.copytree(ROOT / package, Path(directory, package), symlinks=True)
        shutil.copy(ROOT / "triton_python_backend_utils.py", directory)
        for change in PLANTS[name]:
            changed = Path(directory, change.path)
            changed.write_text(with_fault(change, changed.read_text()))
        yield Path(directory), {"PYTHONPATH": f"{directory}:{ROOT}"}


def with_fault(change: Change, source: str) -> str:
    """Return the text of a file with its fault.

    Raises:
        AssertionError: the file does not have the change's text once.
    """
    assert source.count(change.text) == 1, f"not once in {change.path}: {change.text}"
    return source.replace(change.text, change.instead) + change.added
