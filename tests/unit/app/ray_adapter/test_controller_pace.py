"""When Serve's controller looks again at what it runs."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from app.ray_adapter.controller_pace import Pace, pause
from tests.server import ROOT

STEADY_S = 0.2


def applications(*changing: bool) -> Any:
    states = {number: SimpleNamespace(_in_transition=each) for number, each in enumerate(changing)}
    return SimpleNamespace(_deployment_state_manager=SimpleNamespace(_deployment_states=states))


def test_controller_with_many_replicas_has_a_fifth_of_a_processor() -> None:
    assert [pause(STEADY_S, True, look_s) for look_s in (0.001, 0.03, 2.0)] == [0.05, 0.12, STEADY_S]
    assert pause(STEADY_S, False, 0.001) == STEADY_S


@pytest.mark.parametrize(
    ("changing", "seconds"), [((), 0.05), ((False, True), 0.05), ((False, False), STEADY_S)]
)
def test_controller_looks_often_while_something_changes(changing: tuple[bool, ...], seconds: float) -> None:
    module = SimpleNamespace(CONTROL_LOOP_INTERVAL_S=STEADY_S)
    pace = Pace(module)
    seen: list[object] = []
    begins, ends = pace.begins(lambda number: -number), pace.ends(seen.append)
    for number in range(2):
        assert begins(number) == -number
        ends(applications(*changing))
        slept_s = module.CONTROL_LOOP_INTERVAL_S
        assert slept_s == pytest.approx(seconds, abs=0.04)
    ends(applications(False))
    assert module.CONTROL_LOOP_INTERVAL_S == STEADY_S
    assert len(seen) == 3


def test_controller_of_this_ray_sleeps_as_its_pace_says() -> None:
    """Also as an actor, whose class Ray makes of the controller's before that is prepared."""
    program = """
import asyncio
from types import SimpleNamespace
from ray.actor import _modify_class
from ray.serve._private import application_state, controller, deployment_state
from ray.util.tracing.tracing_helper import _inject_tracing_into_class

controller.ServeController._update_proxy_nodes = lambda self: None
actor = _modify_class(controller.ServeController)
_inject_tracing_into_class(actor)
from nereid.controller import prepare
prepare()


class Anything:
    def __getattr__(self, name):
        return Anything()

    def __call__(self, *arguments, **options):
        return None


class Slept(Exception):
    pass


def sleep(seconds):
    print(seconds)
    raise Slept


controller.asyncio = SimpleNamespace(sleep=sleep)
deployments = object.__new__(deployment_state.DeploymentStateManager)
deployments._deployment_states = {}
applications = object.__new__(application_state.ApplicationStateManager)
vars(applications).update(_deployment_state_manager=deployments, _application_states={})
made = object.__new__(actor)
names = actor.run_control_loop.__wrapped__.__code__.co_names
names += actor.run_control_loop_step.__wrapped__.__code__.co_names
vars(made).update({name: Anything() for name in names if not hasattr(actor, name)})
made.application_state_manager, made.deployment_state_manager = applications, deployments
made._shutting_down = made._direct_ingress_enabled = made._ha_proxy_enabled = False
try:
    asyncio.run(made.run_control_loop())
except Slept:
    pass
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "0.05", done.stderr
