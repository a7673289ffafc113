"""Starts, lists and deletes Serve applications from any number of threads. Every function blocks."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import ray
from ray import serve
from ray._private import state as ray_state
from ray.serve._private import client as serve_client
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.serve.context import _get_global_client
from ray.serve.deployment import Application
from ray.serve.schema import ApplicationStatusOverview

from app.core.identifiers import deployment_name

_configuring = threading.Lock()
"""Held while Serve makes a deployment's configuration, for an application that starts and for every status.

`RequestRouterConfig` of Ray 2.60 registers the router's module with cloudpickle for the whole process,
pickles the class and unregisters the module: of two threads that do so at once, one fails.
"""

_DELETE_S = 120.0
"""Longer than a replica may drain (`graceful_shutdown_timeout_s` in deployments/builder.py)."""
_LOOK_S = 0.1
"""Time before Serve is asked about a deletion; `serve.delete` of Ray 2.60 asks once a second."""
_ASK_S = 0.2
_LATER = 1.25
"""Factor by which that time grows, up to a second: most deletions take half of one, a drain takes longer."""


def ask_often() -> None:
    """Have Serve's client ask every 0.2 s whether what it waits for is so; Ray 2.60 asks once a second."""
    client: Any = serve_client
    client.CLIENT_POLLING_INTERVAL_S = _ASK_S


def run_application(name: str, build: Callable[[], Application | None], scaled: bool) -> None:
    """Make Serve run an application, or update a running one; return before it runs.

    Args:
        name: the application.
        build: makes it, while no other configuration is made; returns None to start nothing.
        scaled: whether `scale_deployment` may change its replicas.
    """
    with _configuring:
        application = build()
        if application is not None:
            target = serve.RunTarget(application, name, route_prefix=None, external_scaler_enabled=scaled)
            # Nor is its deployment waited for, which the controller makes at its next look: others wait here.
            serve.run_many(
                [target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
            )


def application_statuses() -> Mapping[str, ApplicationStatusOverview]:
    """Return Serve's view of every application, by name."""
    with _configuring:
        return serve.status().applications


def delete_application(name: str, kill: bool = False) -> None:
    """Delete an application; return when its replicas have drained and stopped, or have been killed.

    Raises:
        TimeoutError: they have not within `_DELETE_S`.
    """
    with _configuring:
        pass  # a start that is in progress must reach Serve before the deletion
    starting = _starting(lambda application, deployments: application == name)
    serve.delete(name, _blocking=False)
    for actor in starting:  # which have nothing to drain, and may not be told before they have started
        _kill(actor)
    deadline = time.monotonic() + _DELETE_S
    pause_s = _LOOK_S
    while name in application_statuses():
        if kill:
            _kill_replicas(name)
        if time.monotonic() >= deadline:
            raise TimeoutError(f"application '{name}' is not deleted after {_DELETE_S:.0f} s")
        time.sleep(pause_s)
        pause_s = min(_LATER * pause_s, 1.0)


def scale_deployment(application: str, deployment: str, replicas: int) -> None:
    """Tell Serve how many replicas a deployment is to have; return before it has them.

    Raises:
        Exception: the application is gone, or does not say `external_scaler_enabled: true`.
    """
    client: Any = _get_global_client()
    controller = client._controller
    deployment_id = DeploymentID(deployment_name(deployment), application)
    ray.get(controller.update_deployment_replicas.remote(deployment_id, replicas))


class ReplicaCounts(NamedTuple):
    """The number of replicas that Serve was told to have of a deployment, and that of those that run."""

    target: int
    running: int


def replica_counts(application: str, deployment: str) -> ReplicaCounts | None:
    """Return how many replicas a deployment has, and is to have; None for one that is gone."""
    with _configuring:
        client: Any = _get_global_client()
        found = client.get_serve_details()["applications"].get(application, {})
    details = _deployments(**found).get(deployment_name(deployment))
    if details is None:
        return None
    running = sum(replica["state"] == "RUNNING" for replica in details["replicas"])
    return ReplicaCounts(int(details["target_num_replicas"]), running)


def _deployments(*, deployments: Mapping[str, Any] | None = None, **_: Any) -> Mapping[str, Any]:
    """Choose, of what Serve tells of an application, that of its deployments."""
    return deployments or {}


class Replicas(NamedTuple):
    """Numbers of replicas of a deployment, wanted and there, and the nodes of those that run."""

    target: int
    present: int
    nodes: tuple[str, ...]


def replicas_by_deployment() -> dict[tuple[str, str], Replicas]:
    """Return the replicas of every deployment, by its application and name."""
    with _configuring:
        client: Any = _get_global_client()
        applications = client.get_serve_details()["applications"]
    return {
        (application, name): _described(details)
        for application, described in applications.items()
        for name, details in _deployments(**described).items()
    }


def _described(details: Mapping[str, Any]) -> Replicas:
    replicas = details["replicas"]
    nodes = tuple(str(each["node_id"]) for each in replicas if each["state"] == "RUNNING")
    return Replicas(int(details["target_num_replicas"]), len(replicas), nodes)


def kill_starting(chosen: Callable[[str, Collection[str]], bool]) -> None:
    """Kill replicas that are being started, which may never return from the load of their model.

    Args:
        chosen: says of which applications, by their name and deployments.
    """
    for actor in _starting(chosen):
        _kill(actor)


def _starting(chosen: Callable[[str, Collection[str]], bool]) -> list[str]:
    """Return the actors of replicas that are being started."""
    with _configuring:
        client: Any = _get_global_client()
        details = client.get_serve_details()["applications"]  # its status counts them, without naming them
    deployed = {name: _deployments(**each) for name, each in details.items()}
    found = [each for name, named in deployed.items() if chosen(name, named) for each in named.values()]
    replicas = [replica for each in found for replica in each["replicas"]]
    return [replica["actor_name"] for replica in replicas if replica["state"] == "STARTING"]


def _kill_replicas(application: str) -> None:
    """Kill the replicas of an application that is being deleted, of which Serve gives no details."""
    actors: Any = ray.util  # untyped in Ray
    for name in (str(actor["name"]) for actor in actors.list_named_actors(all_namespaces=True)):
        if ReplicaID.is_full_id_str(name) and _application(name) == application:
            _kill(name)


def last_death(application: str) -> str:
    """Return how the last replica of an application that has died did so; "" if none has.

    Serve's own message names only the type of the error when the process has ended during its start.
    """
    private: Any = ray_state  # untyped in Ray
    actors = private.actors(actor_state_name="DEAD").values()
    names = ((actor, str(actor["Name"])) for actor in actors)
    dead = [a for a, name in names if ReplicaID.is_full_id_str(name) and _application(name) == application]
    if not dead:
        return ""
    last = max(dead, key=lambda actor: int(actor["EndTime"]))
    cause = in_words(last["DeathCause"].actor_died_error_context.error_message)
    return f"its process {last['Pid']} ended: {cause}"


def in_words(death: str) -> str:
    """Return the part of Ray's message about a process that has ended which says why."""
    detail = death.rpartition("Worker exit detail: ")[2].strip()
    if "connection error code 2" in detail:  # followed by whatever can cause that
        return (
            "by a signal (a crash in native code, SIGKILL, memory that ran out) or os._exit; "
            "what it printed is in the log"
        )
    return detail


def _application(actor_name: str) -> str:
    return str(ReplicaID.from_full_id_str(actor_name).deployment_id.app_name)


def _kill(actor_name: str) -> None:
    with suppress(ValueError):  # it has ended
        ray.kill(ray.get_actor(actor_name, namespace=SERVE_NAMESPACE))


def versioned(deployment: Any, version: str, options: Mapping[str, Any]) -> Any:
    """Return a deployment with these options and a version, by which Serve decides whether replicas restart.

    `Deployment.options` of Ray 2.60 accepts `version` without a deprecation warning only with `_internal`.
    """
    return deployment.options(**options, version=version, _internal=True)
