"""What the server changes in Ray's processes: one row for each, and the switch that leaves it out.

`NEREID_PLAIN_RAY=NAME,...` leaves out the changes with these names, `NEREID_PLAIN_RAY=all` every one: to
learn whether one of them is the cause of a fault, and what each is worth (`python -m benchmarks.ray_changes`;
docs/develop/ray.md has what it printed). Ray's processes inherit the variable.
"""

import os
from typing import Final, NamedTuple

SWITCH: Final = "NEREID_PLAIN_RAY"
_ALL: Final = "all"


class Change(NamedTuple):
    """One change.

    Attributes:
        name: leaves it out, in `SWITCH`.
        module: where it is made, below `app/ray_adapter`.
        text: what Ray does without it, and with it.
        test: the test that fails where another version of Ray has no place for it, below
            `tests/unit/app/ray_adapter`.
    """

    name: str
    module: str
    text: str
    test: str


CHANGES: Final = tuple(
    Change(*row)
    for row in (
        (
            "fork-workers",
            "local/forking.py",
            "Each worker is a program that imports Ray, Serve and the server; now a fork of one.",
            "local/test_forking.py",
        ),
        (
            "rare-checks",
            "local/rare_checks.c",
            "Each worker looks for signals a hundred times a second; now ten times.",
            "local/test_forking.py",
        ),
        (
            "helpers",
            "local/helpers.py",
            "A cluster has a dashboard, an autoscaler and a reader of logs; now a thread reads them.",
            "test_ray_facts.py",
        ),
        (
            "agents",
            "local/stand_in.py",
            "Each raylet starts two agents; now programs that do not import Ray stand in for them.",
            "local/test_stand_in.py",
        ),
        (
            "intervals",
            "local/cluster.py",
            "Raylet, GCS and Serve look for changes ten times a second; now once.",
            "local/test_cluster.py",
        ),
        (
            "controller-pace",
            "serve/controller_pace.py",
            "Serve's controller looks at what it runs at one interval; now when there is something to see.",
            "serve/test_controller_pace.py",
        ),
        (
            "replica-classes",
            "serve/replica_classes.py",
            "Serve exports a class for each load, which every process keeps; now one for each name.",
            "serve/test_replica_classes.py",
        ),
        (
            "spread",
            "serve/placement.py",
            "Two replicas of a model often lie on one node; now on as many nodes as have room.",
            "serve/test_placement.py",
        ),
        (
            "serve-without-pandas",
            "local/lean_serve.py",
            "Serve imports pandas, and so pyarrow, where it is installed; now when somebody else has.",
            "local/test_lean_serve.py",
        ),
        (
            "routers-pickled-once",
            "local/lean_serve.py",
            "Serve pickles the class of a request router for each configuration and status; now once.",
            "local/test_lean_serve.py",
        ),
    )
)


def applies(name: str) -> bool:
    """Whether a change is made.

    Raises:
        ValueError: there is no such change.
    """
    if name not in (change.name for change in CHANGES):
        raise ValueError(f"'{name}' is no change of Ray")
    plain = [each.strip() for each in os.environ.get(SWITCH, "").split(",")]
    return not {name, _ALL} & {*plain}


def check_switch() -> None:
    """Refuse names in `SWITCH` that are no change's.

    Raises:
        ValueError: names them, and those that there are.
    """
    names = {change.name for change in CHANGES} | {_ALL, ""}
    unknown = [each for each in os.environ.get(SWITCH, "").split(",") if each.strip() not in names]
    if unknown:
        known = ", ".join(sorted(names - {""}))
        raise ValueError(f"{SWITCH} names {', '.join(map(repr, unknown))}; there are {known}")
