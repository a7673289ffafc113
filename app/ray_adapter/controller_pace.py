"""Makes Serve's controller look often at what it runs while that changes.

Ray 2.60 has one interval for both (RAY_SERVE_CONTROL_LOOP_INTERVAL_S). An application that starts waits four
times for the end of it: until its deployment is made, its replica is placed, is told to load, and has loaded.
"""

import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final

_CHANGING_S: Final = 0.05
_PAUSES: Final = 4.0
"""A look that takes a second is followed by so many without one: the processors are for the loads."""

Look = Callable[..., Coroutine[Any, Any, None]]


def pace_controller() -> None:
    """Have the controller look so; runs in its process, before its loop does."""
    from ray.serve._private import controller

    module: Any = controller
    looks = module.ServeController
    looks.run_control_loop_step = paced(looks.run_control_loop_step, module)


def pause(steady_s: float, changing: bool, look_s: float) -> float:
    """Return the seconds between two looks.

    Args:
        steady_s: while nothing changes.
        changing: whether a deployment starts, stops or changes its replicas.
        look_s: how long the last look has taken.
    """
    return min(steady_s, max(_CHANGING_S, _PAUSES * look_s)) if changing else steady_s


def paced(look: Look, module: Any) -> Look:
    """Return a look of the controller that sets for how long its module sleeps after it."""
    steady_s = module.CONTROL_LOOP_INTERVAL_S

    @wraps(look)
    async def paced_look(controller: Any, *arguments: Any) -> None:
        began = time.monotonic()
        await look(controller, *arguments)
        look_s = time.monotonic() - began
        module.CONTROL_LOOP_INTERVAL_S = pause(steady_s, _is_changing(controller), look_s)

    return paced_look


def _is_changing(controller: Any) -> bool:
    """Whether anything is to be expected; at its start, the controller waits for the first application."""
    deployments = controller.deployment_state_manager._deployment_states.values()
    return not deployments or any(deployment._in_transition for deployment in deployments)
