"""When Serve's controller looks again at what it runs."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from app.ray_adapter.controller_pace import PacedLoop, pause
from tests.server import ROOT

STEADY_S = 0.5
NEVER = 3600.0


def test_controller_looks_often_while_something_changes_and_a_look_longer() -> None:
    assert [pause(STEADY_S, quiet, look_s=0.001) for quiet in range(4)] == [0.1, 0.1, STEADY_S, STEADY_S]


def test_controller_with_many_replicas_has_a_quarter_of_a_processor() -> None:
    assert pause(STEADY_S, 0, look_s=0.05) == pytest.approx(0.15)
    assert pause(STEADY_S, 0, look_s=2.0) == STEADY_S


class Manager:
    """What the controller calls when something is to change."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def change(self, number: int) -> int:
        self.calls.append(number)
        return number + 1


def controller(changing: bool) -> Any:
    states = {"d": SimpleNamespace(_in_transition=changing)}
    manager = SimpleNamespace(_deployment_states=states)
    return SimpleNamespace(deployment_state_manager=manager, _shutting_down=False)


async def test_call_ends_the_sleep_of_a_steady_controller() -> None:
    class Called(Manager):
        pass

    loop, looks = PacedLoop(NEVER), []

    async def look(controller: Any, number: int) -> None:
        looks.append(number)

    loop.end_sleep_at(Called, "change")
    paced, manager = loop.paced(look), Called()
    for number in range(3):
        await paced(controller(changing=False), number)
    sleeping = asyncio.create_task(loop.sleep(loop._interval_s))
    await asyncio.sleep(0)
    assert not sleeping.done()
    assert manager.change(1) == 2 and manager.calls == [1]
    await sleeping
    assert looks == [0, 1, 2]


async def test_call_by_the_look_itself_does_not_end_the_sleep() -> None:
    class Called(Manager):
        pass

    loop = PacedLoop(NEVER)
    loop.end_sleep_at(Called, "change")

    async def look(controller: Any) -> None:
        Called().change(1)

    paced = loop.paced(look)
    for _ in range(2):
        await paced(controller(changing=False))
    sleeping = asyncio.create_task(loop.sleep(loop._interval_s))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not sleeping.done()
    sleeping.cancel()


async def test_changing_controller_sleeps_shortly() -> None:
    loop = PacedLoop(NEVER)

    async def look(controller: Any) -> None:
        pass

    await loop.paced(look)(controller(changing=True))
    async with asyncio.timeout(20):
        await loop.sleep(loop._interval_s)


async def test_other_sleeps_and_names_of_asyncio_are_as_ever() -> None:
    loop = PacedLoop(NEVER)
    async with asyncio.timeout(20):
        await loop.sleep(0.0)
    assert loop.Event is asyncio.Event


def test_controller_of_this_ray_is_paced() -> None:
    program = """
from ray.serve._private import controller
from ray.serve._private.application_state import ApplicationStateManager
from app.ray_adapter.controller_pace import pace_controller
pace_controller()
look = controller.ServeController.run_control_loop_step
print(controller.asyncio.sleep.__qualname__, look.__wrapped__.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "PacedLoop.sleep run_control_loop_step\n", done.stderr
