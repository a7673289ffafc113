"""Makes Serve's controller look at what it runs when there is something to see.

Ray 2.60 has one interval (RAY_SERVE_CONTROL_LOOP_INTERVAL_S). An application that starts waits four times
for the end of it: until its deployment is made, its replica is placed, is told to load, and has loaded. While
nothing changes, looks begin and end health checks; for each the controller asks the GCS three questions.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from types import SimpleNamespace
from typing import Any, Final

_CHANGING_S: Final = (0.05, 0.2)
"""Bounds of the time between two looks while something changes."""
_PAUSES: Final = 4.0
"""A look that takes a second is followed by so many without one: the processors are for the loads."""
_ANSWER_S: Final = 0.1
"""Time that a replica is given to answer a health check."""
_LATEST: Final = 1.25
"""Periods after the last health check of a replica at which there is another look. Serve draws a period of
0.9 to 1.1 anew at each look: this look begins the checks of those too that are a little behind."""
_BEHIND: Final = 0.3
_DONE: Final = ("RUNNING", "DEPLOY_FAILED", "UNHEALTHY", "NOT_STARTED")
"""States of an application in which it waits for nothing but its deployments."""

Update = Callable[..., Any]


def pace_controller() -> None:
    """Have the controller look so; runs in its process, before its loop does.

    A look updates deployments, then applications. Methods of the controller itself cannot be replaced here:
    Ray has wrapped them in a subclass when it made the actor. It stores whatever it is asked to change.
    """
    from ray.serve._private import controller
    from ray.serve._private.application_state import ApplicationStateManager
    from ray.serve._private.deployment_state import DeploymentStateManager
    from ray.serve._private.storage.kv_store import RayInternalKVStore

    module: Any = controller
    pace = Pace(module)
    first: Any = DeploymentStateManager
    last: Any = ApplicationStateManager
    store: Any = RayInternalKVStore
    first.update, last.update = pace.begins(first.update), pace.ends(last.update)
    store.put = pace.wakes(store.put)
    module.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": pace.sleep})


def pause(longest_s: float, changing: bool, due_s: float, look_s: float) -> float:
    """Return the seconds between two looks.

    Args:
        longest_s: the most.
        changing: whether a deployment starts, stops or changes its replicas.
        due_s: time until there is something to see of a health check.
        look_s: how long the last look has taken.
    """
    least_s, most_s = _CHANGING_S if changing else (due_s, longest_s)
    return min(longest_s, most_s, max(least_s, _PAUSES * look_s))


class Pace:
    """Sets for how long the module of the controller sleeps after a look, and ends that sleep."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._longest_s = module.CONTROL_LOOP_INTERVAL_S
        self._began = 0.0
        self._asked = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Sleep until the controller is asked for something, but for so many seconds at most.

        While something changes it looks soon enough, and not more often than its share of a processor allows.
        """
        if seconds <= _CHANGING_S[1]:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        self._asked.clear()  # also where the look before has failed

    def wakes(self, store: Update) -> Update:
        """Return what the controller is asked for ends with."""

        @wraps(store)
        def waking(*arguments: Any, **options: Any) -> Any:
            self._asked.set()
            return store(*arguments, **options)

        return waking

    def begins(self, update: Update) -> Update:
        """Return the update with which a look begins."""

        @wraps(update)
        def beginning(*arguments: Any, **options: Any) -> Any:
            self._began = time.monotonic()
            return update(*arguments, **options)

        return beginning

    def ends(self, update: Update) -> Update:
        """Return the update with which a look ends."""

        @wraps(update)
        def ending(applications: Any) -> None:
            update(applications)
            look_s = time.monotonic() - self._began
            replicas = list(_replicas(applications))
            bring_into_step(replicas, time.time() - look_s)
            changing, due_s = _is_changing(applications), _next_check_s(replicas)
            self._module.CONTROL_LOOP_INTERVAL_S = pause(self._longest_s, changing, due_s, look_s)
            self._asked.clear()  # by what the look itself has stored

        return ending


def _deployments(applications: Any) -> list[Any]:
    return list(applications._deployment_state_manager._deployment_states.values())


def _is_changing(applications: Any) -> bool:
    """Whether anything is to be expected; at its start, the controller waits for the first application."""
    deployments = _deployments(applications)
    states = (application.status.value for application in applications._application_states.values())
    return (
        not deployments
        or any(deployment._in_transition for deployment in deployments)
        or any(state not in _DONE for state in states)
    )


def bring_into_step(replicas: Sequence[Any], began: float) -> None:
    """Have the health checks of all replicas begin together, so that there are two looks for all of them.

    Once the check of one has begun, the next look begins those of others before their time.

    Args:
        replicas: Serve's `ActorReplicaWrapper`.
        began: when the look began that is over (`time.time`).
    """
    if any(each._health_check_ref is not None and each._last_health_check_time >= began for each in replicas):
        for each in replicas:
            passed = began - each._last_health_check_time
            if each._health_check_ref is None and passed > _BEHIND * each.health_check_period_s:
                each._last_health_check_time = 0.0


def _next_check_s(replicas: Sequence[Any]) -> float:
    """Return the seconds until a health check is to be begun, or has probably been answered."""
    due = min(map(_due, replicas), default=float("inf"))
    return max(_ANSWER_S, due - time.time())


def _replicas(applications: Any) -> Iterator[Any]:
    for deployment in _deployments(applications):
        for replica in deployment._replicas.get():
            yield replica._actor


def _due(replica: Any) -> float:
    """Return when (`time.time`) there is something to see of a replica's health check."""
    if replica._health_check_ref is not None:
        return 0.0
    return float(replica._last_health_check_time + _LATEST * replica.health_check_period_s)
