"""The Serve applications of model versions: deploy, describe, delete, list.

Serve's calls block, so each runs in a thread.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import internal
from app.core.identifiers import name_of, namespace_of
from app.ray_adapter.applications import application_statuses, delete_application, run_application
from app.ray_adapter.handles import new_handle
from deployments.builder import build, replica_count
from deployments.manager.replicas import listing, tell_replicas
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?P<model>.+):(?P<version>\d+)(?P<namespace>~[0-9a-f]{8})?(?:@(?P<generation>\d+))?")

_ANSWER_S = 5.0
_STATUS_S = 1.0
_GONE = ("NOT_STARTED", "DEPLOY_FAILED", "DELETING")
_threads = ThreadPoolExecutor(64, "serve-calls")


class Found(NamedTuple):
    """An application of a model version; `up` is false when it does not serve and never will."""

    model: str
    version: int
    generation: int
    application: str
    up: bool

    @property
    def base(self) -> str:
        """What `base_name` gives: the same for every generation."""
        return self.application.removesuffix(f"@{self.generation}")


def base_name(model: str, version: int) -> str:
    """`simple:1`; with a digest of its namespace when the model is in one (`simple:1~8c0a3f12`)."""
    namespace = namespace_of(model)
    mark = f"~{blake2b(namespace.encode(), digest_size=4).hexdigest()}" if namespace else ""
    return f"{name_of(model)}:{version}{mark}"


def application_name(base: str, generation: int) -> str:
    """`simple:1`, and `simple:1@2` for the second load of the same version, which starts beside the first."""
    return base if generation == 1 else f"{base}@{generation}"


def parse_application(name: str) -> tuple[str, int, int] | None:
    """Model, version and generation of an application name; None for an application that is not ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return match["model"], int(match["version"]), int(match["generation"] or 1)


async def _in_thread(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Run a call that takes seconds in a thread of ours, so that short ones need not wait for those."""
    bound = partial(copy_context().run, call, *arguments, **options)
    await asyncio.get_running_loop().run_in_executor(_threads, bound)


async def deploy(spec: ModelSpec) -> Description:
    """Start a new application and wait for the outcome of its load.

    Raises:
        InferError: INTERNAL when Serve cannot start the replica (it died while loading, say).
    """
    count = replica_count(mc.ModelConfig.FromString(spec.config), spec.backend_path)
    given_up = threading.Event()
    async with listing(spec.name, spec.application) as listed:
        try:
            await _in_thread(_start, spec, given_up)
            loaded = asyncio.create_task(listed.reach(count))
            try:
                await _wait_running(spec.application, loaded)
            finally:
                loaded.cancel()
        except asyncio.CancelledError:
            given_up.set()
            raise
        except Exception as error:
            raise internal(await asyncio.to_thread(_start_failure, spec, error)) from error
        return await _described(listed.handle)


def _start(spec: ModelSpec, given_up: threading.Event | None = None) -> None:
    """Have Serve make an application what the spec says; returns before it is.

    Does nothing when it comes to it after `given_up` is set: nobody would delete the application.
    """
    run_application(
        spec.application,
        lambda: None if given_up is not None and given_up.is_set() else build(spec),
    )


async def _wait_running(application: str, *loaded: "asyncio.Task[Any]") -> None:
    """Wait until all replicas have loaded, or Serve's status says that it is over, one way or the other.

    Args:
        application: its name.
        loaded: what is done once they have, where that can be known before Serve's status says so.

    Raises:
        RuntimeError: Serve has given up on the application, or it was deleted.
    """
    while True:
        asked = _statuses.ask()
        await asyncio.wait((*loaded, asked), return_when=asyncio.FIRST_COMPLETED)
        if any(task.done() for task in loaded):
            return
        found = asked.result().get(application)
        if found is None or found.status in _GONE:
            raise RuntimeError(found.message if found else f"application '{application}' was deleted")
        if found.status == "RUNNING":  # with a replica whose load has failed
            return


class _Statuses:
    """Serve's status, asked for once a second at most, however many wait for it."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[Any] | None = None

    def ask(self) -> "asyncio.Task[Any]":
        """The status a second after somebody has first asked."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return self._asking

    @staticmethod
    async def _ask() -> Any:
        await asyncio.sleep(_STATUS_S)
        return await asyncio.to_thread(application_statuses)


_statuses = _Statuses()


async def update(spec: ModelSpec, previous: ModelSpec) -> Description:
    """Change the instances of a running application, whose processes go on.

    First the replicas there are change, then Serve learns what replicas to come are to be; Python models
    have as many of them as instances.

    Raises:
        InferError: why not; then all is as it was.
    """
    try:
        await tell_replicas(spec)
        description = await _redeploy(spec)
        await tell_replicas(spec)  # one that Serve has started again meanwhile may not know
    except BaseException:  # also when it takes too long
        await _undo_update(msgspec.structs.replace(previous, revision=spec.revision + 1))
        raise
    return description


async def _undo_update(spec: ModelSpec) -> None:
    try:
        await tell_replicas(spec)
        await _redeploy(spec)
    except Exception:
        logger.exception("restoring the instances of '%s'", spec.application)


async def _redeploy(spec: ModelSpec) -> Description:
    """Tell Serve the new spec of a running application; returns when as many replicas run as that says.

    Raises:
        InferError: INTERNAL when Serve cannot start one more.
    """
    try:
        await _in_thread(_start, spec)
        await _wait_running(spec.application)
    except Exception as error:
        raise internal(await asyncio.to_thread(_start_failure, spec, error)) from error
    return await describe(spec.name, spec.application)


async def describe(model: str, application: str) -> Description:
    """Ask a running application what it serves."""
    async with listing(model, application) as listed:
        return await _described(listed.handle)


async def _described(handle: Any) -> Description:
    return msgspec.msgpack.decode(await handle.describe.remote(), type=Description)


async def delete(application: str) -> None:
    """Delete an application; its replicas drain first. Failures are logged: nobody can act on them."""
    try:
        await _in_thread(delete_application, application)
    except Exception:
        logger.exception("deleting application '%s'", application)


async def listed() -> list[Found]:
    """The model applications that Serve knows of now."""
    statuses = await asyncio.to_thread(application_statuses)
    found = []
    for name, application in statuses.items():
        parsed = parse_application(name)
        if parsed and list(application.deployments) in ([], [parsed[0]]):
            found.append(Found(*parsed, name, application.status not in _GONE))
    return found


async def running_replicas(application: str, deployment: str) -> int:
    """How many replicas of a deployment run now."""
    found = (await asyncio.to_thread(application_statuses)).get(application)
    if found is None or deployment not in found.deployments:
        return 0
    states: Any = found.deployments[deployment].replica_states
    return int(states.get("RUNNING", 0))


async def routed_ensembles(application: str, deployment: str) -> set[tuple[str, int]] | None:
    """Identifier and version of the ensembles that an ingress routes to; None when none can tell."""
    handle: Any = new_handle(deployment, application)
    try:
        async with asyncio.timeout(_ANSWER_S):
            answer = await handle.routed_ensembles.remote()
    except Exception as error:
        logger.warning("no ingress tells which ensembles were loaded: %r", error)
        return None
    finally:
        await asyncio.to_thread(handle.shutdown)
    return None if answer is None else {(name, version) for name, version in answer}


def _start_failure(spec: ModelSpec, error: Exception) -> str:
    status = application_statuses().get(spec.application)
    messages = [d.message for d in status.deployments.values() if d.message] if status else []
    detail = (messages[0] if messages else str(error)).strip().splitlines()
    return f"the replica of model '{spec.name}' could not start: {detail[-1] if detail else error}"
