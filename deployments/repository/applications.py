"""The Serve applications of model versions: deploy, describe, delete, list.

Serve's calls block, so each runs in a thread.
"""

import asyncio
import logging
import re
from typing import Any

import msgspec
from ray import serve
from ray.serve.handle import DeploymentHandle

from app.core.errors import internal
from deployments.builder import build
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?P<model>.+):(?P<version>\d+)(?:@(?P<generation>\d+))?")


def application_name(model: str, version: int, generation: int) -> str:
    """`simple:1`, and `simple:1@2` for the second load of the same version, which starts beside the first."""
    return f"{model}:{version}" if generation == 1 else f"{model}:{version}@{generation}"


def parse_application(name: str) -> tuple[str, int, int] | None:
    """Model, version and generation of an application name; None for an application that is not ours."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return match["model"], int(match["version"]), int(match["generation"] or 1)


async def deploy(spec: ModelSpec) -> Description:
    """Start the application and wait for the outcome of its load.

    Raises:
        InferError: INTERNAL when Serve cannot start the replica (it died while loading, say).
    """
    try:
        await asyncio.to_thread(serve.run, build(spec), name=spec.application, route_prefix=None)
    except Exception as error:
        raise internal(_start_failure(spec, error)) from error
    return await describe(spec.name, spec.application)


async def describe(model: str, application: str) -> Description:
    """Ask a running application what it serves."""
    # Serve caches the handles it gives out, also those that were shut down; this one is our own.
    handle: Any = DeploymentHandle(model, application)
    try:
        answer = await handle.describe.remote()
    finally:
        await asyncio.to_thread(handle.shutdown)
    return msgspec.msgpack.decode(answer, type=Description)


async def delete(application: str) -> None:
    """Delete an application; its replicas drain first. Failures are logged: nobody can act on them."""
    try:
        await asyncio.to_thread(serve.delete, application)
    except Exception:
        logger.exception("deleting application '%s'", application)


async def running() -> list[tuple[str, int, int, str]]:
    """Model, version, generation and application name of the model applications that run now."""
    status = await asyncio.to_thread(serve.status)
    found = []
    for name, application in status.applications.items():
        parsed = parse_application(name)
        if parsed and application.status == "RUNNING" and list(application.deployments) == [parsed[0]]:
            found.append((*parsed, name))
    return found


async def running_replicas(application: str, deployment: str) -> int:
    """How many replicas of a deployment run now."""
    status = await asyncio.to_thread(serve.status)
    found = status.applications.get(application)
    if found is None or deployment not in found.deployments:
        return 0
    states: Any = found.deployments[deployment].replica_states
    return int(states.get("RUNNING", 0))


def _start_failure(spec: ModelSpec, error: Exception) -> str:
    status = serve.status().applications.get(spec.application)
    messages = [d.message for d in status.deployments.values() if d.message] if status else []
    detail = (messages[0] if messages else str(error)).strip().splitlines()
    return f"the replica of model '{spec.name}' could not start: {detail[-1] if detail else error}"
