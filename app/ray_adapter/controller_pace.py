"""Makes Serve's controller look at what it runs often while that changes, and seldom while nothing does.

Ray 2.60 has one interval for both (RAY_SERVE_CONTROL_LOOP_INTERVAL_S): each step of a start waits for it, and
an idle controller wakes up as often.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final

_CHANGING_S: Final = 0.1
_IDLE_SHARE: Final = 3.0
"""A look that takes a second is followed by so many without one: the processors are for the loads."""
_QUIET_LOOKS: Final = 2
"""Looks without a change after which nothing changes: an application shows one later what became of it."""

Look = Callable[..., Coroutine[Any, Any, None]]


def pace_controller() -> None:
    """Have the controller look so; runs in its process, before its loop does."""
    from ray.serve._private import controller
    from ray.serve._private.application_state import ApplicationStateManager
    from ray.serve._private.deployment_state import DeploymentStateManager

    module: Any = controller
    loop = PacedLoop(module.CONTROL_LOOP_INTERVAL_S)
    looking = module.ServeController
    looking.run_control_loop_step = loop.paced(looking.run_control_loop_step)
    module.asyncio = loop  # of which it sleeps between two looks
    for name in ("deploy_apps", "apply_app_configs", "delete_app"):
        loop.end_sleep_at(ApplicationStateManager, name)
    loop.end_sleep_at(DeploymentStateManager, "set_target_num_replicas")


def pause(steady_s: float, quiet_looks: int, look_s: float) -> float:
    """Return the seconds between two looks.

    Args:
        steady_s: while nothing changes.
        quiet_looks: so many looks in a row have seen nothing start or stop.
        look_s: how long the last one has taken.
    """
    changing_s = min(steady_s, max(_CHANGING_S, _IDLE_SHARE * look_s))
    return steady_s if quiet_looks >= _QUIET_LOOKS else changing_s


class PacedLoop:
    """The loop of the controller; in its module it stands for `asyncio`, with another `sleep`.

    Args:
        interval_s: the time that the controller sleeps between two looks, by which that sleep is known.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._pause_s = 0.0
        self._quiet_looks = 0
        self._called = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        """Sleep; instead of the interval, until it is time for the next look."""
        if seconds is not self._interval_s:
            return await asyncio.sleep(seconds)
        self._called.clear()  # a look may call itself what ends the sleep
        try:
            async with asyncio.timeout(self._pause_s):
                await self._called.wait()
        except TimeoutError:
            pass

    def paced(self, look: Look) -> Look:
        """Return a look of the controller that decides when the next one is."""

        @wraps(look)
        async def paced_look(controller: Any, *arguments: Any) -> None:
            began = time.monotonic()
            await look(controller, *arguments)
            self._quiet_looks = 0 if _is_changing(controller) else self._quiet_looks + 1
            self._pause_s = pause(self._interval_s, self._quiet_looks, time.monotonic() - began)

        return paced_look

    def end_sleep_at(self, manager: type, name: str) -> None:
        """Have a method, by which Serve learns of a change, end the sleep."""
        call = getattr(manager, name)

        @wraps(call)
        def announced(*arguments: Any, **options: Any) -> Any:
            self._called.set()
            return call(*arguments, **options)

        setattr(manager, name, announced)


def _is_changing(controller: Any) -> bool:
    deployments = controller.deployment_state_manager._deployment_states.values()
    return controller._shutting_down or any(deployment._in_transition for deployment in deployments)
