"""Scales the model versions that ask for it: reads their load, decides, and tells Serve."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from time import monotonic
from typing import Any, Final, Protocol

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.ray_adapter.applications import scale_deployment, target_replicas
from app.ray_adapter.node import gpus_by_node
from app.routing.pool import ReplicaPool
from app.routing.router import Router
from app.routing.scale import Scale
from app.transport.channel.client import Channel
from deployments.parameters import ScalingBounds, replica_parameters
from deployments.scaling.loads import sample
from deployments.scaling.policy import PERIOD_S, Decision, ScalingPolicy
from deployments.spec import LOAD, ModelSpec, ReplicaLoad

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 1.0
_COMPARE_S: Final = 10.0
"""Time from one comparison with what Serve was told to the next: a redeployment may tell it otherwise."""

poll_pause = asyncio.sleep


class Publish(Protocol):
    """Shows the scale of an application to the ingresses."""

    def __call__(self, application: str, *, scale: Scale) -> Awaitable[None]: ...


class Autoscaler:
    """Follows the load of every version with `max_replicas`.

    Args:
        served: the specs of the deployed versions, by application.
        publish: called at every change.
        make_router: makes what opens channels to replicas; called when there is a version to scale.
    """

    def __init__(
        self,
        served: Mapping[str, ModelSpec],
        publish: Publish,
        make_router: Callable[[], Router],
    ) -> None:
        self._served = served
        self._publish = publish
        self._make_router = make_router
        self._versions: dict[str, ScaledVersion] = {}

    async def run(self, is_stopping: Callable[[], bool]) -> None:
        """Scale until the manager stops."""
        while not is_stopping():
            self._follow()
            await asyncio.gather(*(version.tick() for version in self._versions.values()))
            await poll_pause(PERIOD_S)

    @cached_property
    def _router(self) -> Router:
        return self._make_router()

    def _follow(self) -> None:
        """Begin with versions that are served now, and end with those that are not."""
        served = self._served
        for application in self._versions.keys() - served.keys():
            del self._versions[application]
            self._router.close_control_pool(application)
        for application in served.keys() - self._versions.keys():
            spec = served[application]
            bounds = replica_parameters(mc.ModelConfig.FromString(spec.config)).scaling
            if bounds is not None:
                pool = self._router.open_control_pool(spec.name, application)
                self._versions[application] = ScaledVersion(spec, bounds, pool, self._publish)


class ScaledVersion:
    """One version, and what is known of its load."""

    def __init__(self, spec: ModelSpec, bounds: ScalingBounds, pool: ReplicaPool, publish: Publish) -> None:
        self._spec = spec
        self._bounds = bounds
        self._pool = pool
        self._publish = publish
        self._policy: ScalingPolicy | None = None
        self._reports: dict[Channel, ReplicaLoad] = {}
        self._changes: Counter[str] = Counter()
        self._nodes = 1
        self._compared_at = 0.0
        self._failure = ""

    async def tick(self) -> None:
        """Take a sample and act on it; a failure is logged once, and the work tried again."""
        try:
            policy = await self._compared()
            if policy is not None:
                await self._observe(policy)
            self._failure = ""
        except Exception as error:
            if repr(error) != self._failure:
                self._failure = repr(error)
                logger.error("cannot scale '%s': %s", self._spec.application, self._failure)

    async def _compared(self) -> ScalingPolicy | None:
        """Return the policy, which knows what Serve was told; None when the application is gone."""
        now = monotonic()
        if self._policy is not None and now - self._compared_at < _COMPARE_S:
            return self._policy
        self._compared_at = now
        self._nodes = len(await asyncio.to_thread(gpus_by_node))
        told = await asyncio.to_thread(target_replicas, self._spec.application, self._spec.name)
        if told is None:
            return None
        if self._policy is None:
            self._policy = ScalingPolicy(self._bounds, told, now)
            await self._show(self._policy.decision)
        self._policy.adopt(told)
        return self._policy

    async def _observe(self, policy: ScalingPolicy) -> None:
        reports = await self._read()
        before, self._reports = self._reports, reports
        running = sum(not channel.draining for channel in self._pool.channels)
        if running and not before.keys() & reports.keys():
            return  # a reading alone tells nothing
        last = policy.decision
        decision = policy.observe(sample(before, reports, running, self._nodes), monotonic())
        if decision.replicas != last.replicas:
            await self._change(policy, last, decision)
        elif decision.reason != last.reason:
            await self._show(decision)

    async def _change(self, policy: ScalingPolicy, last: Decision, decision: Decision) -> None:
        spec = self._spec
        text = "scaling '%s' version %d from %d to %d replicas (%s: %s)"
        numbers = last.replicas, decision.replicas
        logger.info(text, spec.identifier, spec.version, *numbers, decision.reason, decision.figures)
        try:
            await asyncio.to_thread(scale_deployment, spec.application, spec.name, decision.replicas)
        except BaseException:
            policy.adopt(last.replicas)
            raise
        self._changes[decision.reason] += 1
        await self._show(decision)

    async def _show(self, decision: Decision) -> None:
        scale = Scale(decision.replicas, decision.reason, decision.figures, dict(self._changes))
        await self._publish(self._spec.application, scale=scale)

    async def _read(self) -> dict[Channel, ReplicaLoad]:
        """Ask every replica; one that does not answer in time is left out."""
        channels = [channel for channel in self._pool.channels if not (channel.suspected or channel.draining)]
        asked = (channel.control(LOAD, None, _ANSWER_S) for channel in channels)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return {
            channel: msgspec.convert(answer, ReplicaLoad)
            for channel, answer in zip(channels, answers, strict=True)
            if not _is_failure(answer)
        }


def _is_failure(answer: Any) -> bool:
    if isinstance(answer, (InferError, OSError, TimeoutError)):
        return True
    if isinstance(answer, BaseException):
        raise answer
    return False
