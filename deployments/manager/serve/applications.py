"""The Serve applications of model versions: deploy, update, describe, delete, list.

Serve's calls block, so each runs in a thread.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import internal
from app.core.files.private_files import full_disk
from app.core.identifiers import deployment_name
from app.core.rollout.split import Split
from app.ray_adapter.node import ASK_S, replica_deployment
from app.ray_adapter.serve.applications import (
    application_statuses,
    delete_application,
    in_words,
    last_death,
    run_application,
    scale_deployment,
)
from app.ray_adapter.serve.handles import connect, new_handle
from deployments.builder import build
from deployments.manager.serve.replicas import update_replicas, watch_replicas
from deployments.parameters import ReplicaParameters, replica_parameters
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

_NAME = re.compile(
    r"(?P<deployment>.+):(?P<version>\d+)(?P<namespace>~[0-9a-f]{8})?(?:@(?P<generation>\d+))?"
)

_ANSWER_S = 5.0
_STATUS_S = 1.0
_ENDED = ("NOT_STARTED", "DEPLOY_FAILED", "DELETING")
# Apart from asyncio's default threads: these calls take seconds, and short ones must not queue behind them.
_threads = ThreadPoolExecutor(64, "serve-calls")


class ModelApplication(NamedTuple):
    """A listed application of a model version; `up` is false when it does not serve and never will.

    `empty` says that it has no replica, nor one that starts: it was scaled to zero.
    """

    deployment: str
    version: int
    generation: int
    application: str
    up: bool
    empty: bool = False

    @property
    def base(self) -> str:
        """The result of `base_name`, which all generations share."""
        return self.application.removesuffix(f"@{self.generation}")


def parse_application(name: str) -> tuple[str, int, int] | None:
    """Return deployment, version and generation of an application name; None for other applications."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return match["deployment"], int(match["version"]), int(match["generation"] or 1)


def is_model_application(name: str, deployments: Collection[str]) -> bool:
    """Return whether an application with these deployments is that of a model version."""
    parsed = parse_application(name)
    return parsed is not None and list(deployments) in ([], [parsed[0]])


async def _in_thread(call: Callable[..., None], *arguments: Any) -> None:
    bound = partial(copy_context().run, call, *arguments)
    await asyncio.get_running_loop().run_in_executor(_threads, bound)


async def deploy(spec: ModelSpec) -> Description:
    """Start a new application and wait for the outcome of its load.

    Raises:
        InferError: INVALID_ARG for a parameter that cannot be read, INTERNAL when Serve cannot start the
            replica (it died while loading, say).
    """
    count = _parameters(spec).started(spec.replicas, spec.percent)
    cancelled = threading.Event()
    async with watch_replicas(spec.name, spec.application) as watched:
        try:
            await _in_thread(_start, spec, cancelled)
            loaded = asyncio.create_task(watched.wait_for(count))
            try:
                await _wait_running(spec.application, loaded)
            finally:
                loaded.cancel()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        except Exception as error:
            raise internal(await asyncio.to_thread(_start_failure, spec, error)) from error
        return await _described(watched.handle)


def _start(spec: ModelSpec, cancelled: threading.Event | None = None) -> None:
    """Start or update an application; return before it runs.

    Does nothing when `cancelled` is set by then, since no caller would delete the application.
    """
    run_application(
        spec.application,
        lambda: None if cancelled is not None and cancelled.is_set() else build(spec),
        scaled=_parameters(spec).variable,
    )


def _parameters(spec: ModelSpec) -> ReplicaParameters:
    return replica_parameters(mc.ModelConfig.FromString(spec.config))


async def _wait_running(application: str, *loaded: "asyncio.Task[Any]") -> None:
    """Wait until all replicas have loaded, or until Serve reports the application as running or failed.

    Args:
        application: its name.
        loaded: tasks that end when the replicas have loaded, earlier than Serve's status shows it.

    Raises:
        RuntimeError: Serve could not start the application, or it was deleted.
    """
    while True:
        polled = _statuses.poll()
        await asyncio.wait((*loaded, polled), return_when=asyncio.FIRST_COMPLETED)
        if any(task.done() for task in loaded):
            return
        found = polled.result().get(application)
        if found is None or found.status in _ENDED:
            raise RuntimeError(found.message if found else f"application '{application}' was deleted")
        if found.status == "RUNNING":  # with a replica whose load has failed
            return


class _Statuses:
    """Serve's status, polled once a second however many callers wait for it."""

    def __init__(self) -> None:
        self._polling: asyncio.Task[Mapping[str, Any]] | None = None

    def poll(self) -> "asyncio.Task[Mapping[str, Any]]":
        """Return the task of the next poll, one second after the first call that waits for it."""
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        return self._polling

    async def _poll(self) -> Mapping[str, Any]:
        await asyncio.sleep(_STATUS_S)
        self._polling = None  # who asks from here on may have started an application that the answer lacks
        return await asyncio.to_thread(application_statuses)


_statuses = _Statuses()


async def update(spec: ModelSpec, previous: ModelSpec) -> Description:
    """Change the instances of a running application without restarting its processes.

    Running replicas change first, then Serve gets the spec for later replicas.

    Raises:
        InferError: the change failed; everything is as before.
    """
    try:
        scaling = _parameters(spec).scaling
        if scaling and not (scaling.fewest or await started_replicas(spec.application, spec.name)):
            await wake(spec.application, spec.name)
        await update_replicas(spec)
        description = await _redeploy(spec)
        await update_replicas(spec)  # Serve may have restarted a replica with the old spec meanwhile
    except BaseException:  # also a timeout
        await _undo_update(msgspec.structs.replace(previous, revision=spec.revision + 1))
        raise
    return description


async def _undo_update(spec: ModelSpec) -> None:
    try:
        await update_replicas(spec)
        await _redeploy(spec)
    except Exception:
        logger.exception("restoring the instances of '%s'", spec.application)


async def _redeploy(spec: ModelSpec) -> Description:
    """Give Serve the new spec of a running application; return when it runs again.

    Raises:
        InferError: INTERNAL when Serve cannot start another replica.
    """
    try:
        await _in_thread(_start, spec)
        await _wait_running(spec.application)
    except Exception as error:
        raise internal(await asyncio.to_thread(_start_failure, spec, error)) from error
    return await describe(spec.name, spec.application)


async def wake(application: str, deployment: str) -> None:
    """Start a replica of an application that was scaled to zero."""
    with suppress(Exception):  # it is not scaled, and its replica has not begun to start
        await _in_thread(scale_deployment, application, deployment, 1)


async def describe(model: str, application: str) -> Description:
    """Return the description of a running application."""
    async with watch_replicas(model, application) as watched:
        return await _described(watched.handle)


async def _described(handle: Any) -> Description:
    return msgspec.msgpack.decode(await handle.describe.remote(), type=Description)


async def delete(application: str, kill: bool = False) -> bool:
    """Delete an application after its replicas have drained; log a failure, and return whether it is gone.

    With `kill` its replicas are killed instead.
    """
    try:
        await _in_thread(delete_application, application, kill)
    except Exception:
        logger.exception("deleting application '%s'", application)
        return False
    return True


async def listed() -> list[ModelApplication]:
    """List the model applications that Serve knows."""
    statuses = await asyncio.to_thread(application_statuses)
    found = []
    for name, application in statuses.items():
        parsed = parse_application(name)
        if parsed and is_model_application(name, application.deployments):
            known = list(application.deployments.values())
            empty = bool(known) and not any(each.replica_states for each in known)
            found.append(ModelApplication(*parsed, name, application.status not in _ENDED, empty))
    return found


async def running_replicas(application: str, deployment: str) -> int:
    """Return the number of running replicas of a deployment."""
    return (await _replica_states(application, deployment)).get("RUNNING", 0)


async def started_replicas(application: str, deployment: str) -> int:
    """Return the number of replicas of a deployment that run, or are to run."""
    states = await _replica_states(application, deployment)
    return sum(number for state, number in states.items() if state != "STOPPING")


async def _replica_states(application: str, deployment: str) -> dict[str, int]:
    async with asyncio.timeout(ASK_S):
        statuses = await asyncio.get_running_loop().run_in_executor(_threads, application_statuses)
    found = statuses.get(application)
    deployed = found.deployments.get(deployment_name(deployment)) if found else None
    states: Any = deployed.replica_states if deployed else {}  # keyed by a string enumeration
    return dict(states)


async def routed_ensembles(application: str, deployment: str) -> set[tuple[str, int]] | None:
    """Return identifier and version of the ensembles that an ingress routes to; None without an answer."""
    answer = await _ask(application, deployment, "routed_ensembles")
    return None if answer is None else {(name, version) for name, version in answer}


async def routed_splits(application: str, deployment: str) -> tuple[Split, ...]:
    """Return the rollouts by which an ingress splits requests; none without an answer."""
    answer = await _ask(application, deployment, "routed_splits")
    return () if answer is None else msgspec.msgpack.decode(answer, type=tuple[Split, ...])


async def _ask(application: str, deployment: str, method: str) -> Any:
    """Ask any ingress; return None without an answer."""
    handle: Any = new_handle(deployment, application)
    try:
        async with asyncio.timeout(_ANSWER_S):
            await asyncio.to_thread(connect, handle)
            return await getattr(handle, method).remote()
    except Exception as error:
        logger.warning("no ingress answers %s: %r", method, error)
        return None
    finally:
        await asyncio.to_thread(handle.shutdown)


async def stops() -> bool:
    """Return whether the server stops: Serve ends the application of this process."""
    _, own = replica_deployment()
    found = (await asyncio.to_thread(application_statuses)).get(own)
    return found is not None and found.status == "DELETING"


def _start_failure(spec: ModelSpec, error: Exception) -> str:
    status = application_statuses().get(spec.application)
    messages = [d.message for d in status.deployments.values() if d.message] if status else []
    lines = (messages[0] if messages else str(error)).strip().splitlines()
    detail = lines[-1] if lines else str(error)
    died = "ActorDiedError" in detail
    if died:
        detail = last_death(spec.application) or detail
    elif "Worker exit detail: " in detail:
        detail = f"its process ended {in_words(detail)}"
    text = f"the replica of model '{spec.name}' could not start: {full_disk() or detail}"
    stub = _not_healthy(spec) if died else ""
    return f"{stub} T{text[1:]}" if stub else text


def _not_healthy(spec: ModelSpec) -> str:
    """Return what Triton says when the process of a Python model's instance ends while it loads."""
    config = mc.ModelConfig.FromString(spec.config)
    if config.backend != "python":
        return ""
    group = config.instance_group[0].name if config.instance_group else ""
    return f"Stub process '{group or f'{spec.name}_0'}_0' is not healthy."
