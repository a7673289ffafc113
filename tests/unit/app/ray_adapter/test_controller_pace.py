"""When Serve's controller looks again at what it runs."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from app.ray_adapter.controller_pace import paced, pause
from tests.server import ROOT

STEADY_S = 0.2


def controller(*changing: bool) -> Any:
    states = {number: SimpleNamespace(_in_transition=each) for number, each in enumerate(changing)}
    return SimpleNamespace(deployment_state_manager=SimpleNamespace(_deployment_states=states))


def test_controller_with_many_replicas_has_a_fifth_of_a_processor() -> None:
    assert [pause(STEADY_S, True, look_s) for look_s in (0.001, 0.03, 2.0)] == [0.05, 0.12, STEADY_S]
    assert pause(STEADY_S, False, 0.001) == STEADY_S


@pytest.mark.parametrize(
    ("changing", "seconds"), [((), 0.05), ((False, True), 0.05), ((False, False), STEADY_S)]
)
async def test_controller_looks_often_while_something_changes(
    changing: tuple[bool, ...], seconds: float
) -> None:
    module = SimpleNamespace(CONTROL_LOOP_INTERVAL_S=STEADY_S)
    seen = []

    async def look(controller: Any, number: int) -> None:
        seen.append(number)

    paced_look = paced(look, module)
    for number in range(2):
        await paced_look(controller(*changing), number)
        slept_s = module.CONTROL_LOOP_INTERVAL_S
        assert slept_s == pytest.approx(seconds, abs=0.04)
    await paced_look(controller(False), 2)
    assert module.CONTROL_LOOP_INTERVAL_S == STEADY_S
    assert seen == [0, 1, 2]


def test_controller_of_this_ray_is_paced() -> None:
    program = """
from nereid.controller import prepare
prepare()
from ray.serve._private import controller
print(controller.ServeController.run_control_loop_step.__wrapped__.__qualname__)
print("CONTROL_LOOP_INTERVAL_S" in controller.ServeController.run_control_loop.__code__.co_names)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ServeController.run_control_loop_step\nTrue\n", done.stderr
