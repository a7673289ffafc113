"""When Serve's controller looks again at what it runs."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from app.ray_adapter.serve.controller_pace import Pace, bring_into_step, pause
from tests.server import ROOT

LONGEST_S = 1.0
NOW = 1000.0


def replica(checked: float, asked: bool = False, period_s: float = 1.0) -> Any:
    found = SimpleNamespace(_health_check_ref=object() if asked else None, _last_health_check_time=checked)
    return SimpleNamespace(_actor=SimpleNamespace(**vars(found), health_check_period_s=period_s))


def applications(*changing: bool, replicas: Sequence[Any] = (), status: str = "RUNNING") -> Any:
    states = {
        number: SimpleNamespace(_in_transition=each, _replicas=SimpleNamespace(get=lambda: replicas))
        for number, each in enumerate(changing)
    }
    found = SimpleNamespace(status=SimpleNamespace(value=status))
    return SimpleNamespace(
        _deployment_state_manager=SimpleNamespace(_deployment_states=states),
        _application_states={"model": found},
    )


def slept(monkeypatch: pytest.MonkeyPatch, *looks: Any) -> list[float]:
    """Return for how long a controller sleeps after looks that take no time."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(time, "monotonic", lambda: NOW)
    module = SimpleNamespace(CONTROL_LOOP_INTERVAL_S=LONGEST_S)
    pace = Pace(module)
    seen: list[object] = []
    begins, ends = pace.begins(lambda number: -number), pace.ends(seen.append)
    found = []
    for number, look in enumerate(looks):
        assert begins(number) == -number
        ends(look)
        found.append(module.CONTROL_LOOP_INTERVAL_S)
    assert seen == list(looks)
    return found


def test_controller_with_many_replicas_has_a_fifth_of_a_processor() -> None:
    assert [pause(LONGEST_S, True, 0.1, look_s) for look_s in (0.001, 0.03, 2.0)] == [0.05, 0.12, 0.2]
    assert [pause(LONGEST_S, False, 0.1, look_s) for look_s in (0.001, 0.03, 2.0)] == [0.1, 0.12, LONGEST_S]
    assert pause(0.02, True, 0.1, 2.0) == 0.02


def test_controller_looks_often_while_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    calm, deploying = applications(False, False), applications(False, status="DEPLOYING")
    looks = applications(), applications(False, True), deploying, calm
    assert slept(monkeypatch, *looks) == [0.05, 0.05, 0.05, LONGEST_S]


def test_controller_looks_when_a_health_check_is_due_or_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = [replica(NOW), replica(NOW - 0.5)]
    asked = applications(False, replicas=[*checked, replica(NOW, asked=True)])
    slow = applications(False, replicas=[replica(NOW, period_s=10.0)])
    found = slept(monkeypatch, applications(False, replicas=checked), asked, slow)
    assert found == [pytest.approx(0.75), pytest.approx(0.1), LONGEST_S]


def checks(lasts: Sequence[float], seconds: float) -> tuple[list[list[float]], int]:
    """Return when health checks of replicas begin that answer at once, and the number of looks."""
    replicas = [replica(NOW + last)._actor for last in lasts]
    begun: list[list[float]] = [[] for _ in replicas]
    now, looks = NOW, 0
    while now < NOW + seconds:
        for each, times in zip(replicas, begun, strict=True):
            each._health_check_ref = None
            if now - each._last_health_check_time > 1.1:
                each._health_check_ref, each._last_health_check_time = object(), now
                times.append(now - NOW)
        bring_into_step(replicas, now)
        due = [0.0 if each._health_check_ref else each._last_health_check_time + 1.25 for each in replicas]
        now, looks = now + max(0.1, min(due) - now), looks + 1
    return begun, looks


def test_health_checks_of_replicas_get_into_step() -> None:
    begun, looks = checks([-0.1, -0.3, -0.5, -0.7, -0.9], 25.0)
    assert looks <= 45  # two each 1.25 s
    for times in begun:
        assert max(b - a for a, b in pairwise([times[0] - 1.25, *times])) < 1.36
        assert times[0] < 1.25
    assert {times[-1] for times in begun} == {begun[0][-1]}


def test_check_that_is_not_answered_begins_no_others() -> None:
    hung, other = replica(NOW - 5.0, asked=True)._actor, replica(NOW - 0.5)._actor
    bring_into_step([hung, other], NOW)
    assert other._last_health_check_time == NOW - 0.5


def test_sleep_of_the_controller_ends_when_it_is_asked_for_something() -> None:
    async def run() -> list[str]:
        pace = Pace(SimpleNamespace(CONTROL_LOOP_INTERVAL_S=LONGEST_S))
        store, ends = pace.wakes(lambda key: f"stored {key}"), pace.ends(lambda applications: None)
        sleeping = asyncio.ensure_future(pace.sleep(60.0))
        await asyncio.sleep(0)
        found = [store("applications")]
        await asyncio.wait_for(sleeping, 60)
        store("what a look stores")
        ends(applications(True))
        waiting = asyncio.ensure_future(pace.sleep(60.0))
        await asyncio.sleep(0)
        found.append(str(waiting.done()))
        waiting.cancel()
        store("more")
        await pace.sleep(60.0)
        again = asyncio.ensure_future(pace.sleep(60.0))
        await asyncio.sleep(0)
        found.append(str(again.done()))
        again.cancel()
        await pace.sleep(0.0)
        return found

    assert asyncio.run(run()) == ["stored applications", "False", "False"]


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
    env = {**os.environ, "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )
    # By how long a look has taken.
    assert 0.05 <= float(done.stdout.splitlines()[-1]) <= 0.2, done.stderr
