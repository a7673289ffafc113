"""Makes Serve's controller look often at what it runs while that changes.

Ray 2.60 has one interval for both (RAY_SERVE_CONTROL_LOOP_INTERVAL_S). An application that starts waits four
times for the end of it: until its deployment is made, its replica is placed, is told to load, and has loaded.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

_CHANGING_S: Final = 0.05
_PAUSES: Final = 4.0
"""A look that takes a second is followed by so many without one: the processors are for the loads."""

Update = Callable[..., Any]


def pace_controller() -> None:
    """Have the controller look so; runs in its process, before its loop does.

    A look updates deployments, then applications. Methods of the controller itself cannot be replaced here:
    Ray has wrapped them in a subclass when it made the actor.
    """
    from ray.serve._private import controller
    from ray.serve._private.application_state import ApplicationStateManager
    from ray.serve._private.deployment_state import DeploymentStateManager

    pace = Pace(controller)
    first: Any = DeploymentStateManager
    last: Any = ApplicationStateManager
    first.update, last.update = pace.begins(first.update), pace.ends(last.update)


def pause(steady_s: float, changing: bool, look_s: float) -> float:
    """Return the seconds between two looks.

    Args:
        steady_s: while nothing changes.
        changing: whether a deployment starts, stops or changes its replicas.
        look_s: how long the last look has taken.
    """
    return min(steady_s, max(_CHANGING_S, _PAUSES * look_s)) if changing else steady_s


class Pace:
    """Sets for how long the module of the controller sleeps after a look."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._steady_s = module.CONTROL_LOOP_INTERVAL_S
        self._began = 0.0

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
            self._module.CONTROL_LOOP_INTERVAL_S = pause(self._steady_s, _is_changing(applications), look_s)

        return ending


def _is_changing(applications: Any) -> bool:
    """Whether anything is to be expected; at its start, the controller waits for the first application."""
    deployments = applications._deployment_state_manager._deployment_states.values()
    return not deployments or any(deployment._in_transition for deployment in deployments)
