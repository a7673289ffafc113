"""Scales the model versions that ask for it: reads their load, decides, and tells Serve."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from functools import cached_property, lru_cache
from time import monotonic
from typing import Final, Protocol

from tritonclient.grpc import model_config_pb2 as mc

from app.core.system.lone_thread import LoneThread
from app.ray_adapter.node import ASK_S, gpus_by_node
from app.ray_adapter.serve.applications import ReplicaCounts, replica_counts, scale_deployment
from app.routing.pool import ReplicaPool
from app.routing.pools import Pools
from app.routing.scale import Outlook, Scale
from app.transport.channel.client import Channel
from app.transport.channel.survey import ask
from deployments.parameters import ScalingBounds, replica_parameters
from deployments.scaling.forecasts import Forecasts, VersionForecast
from deployments.scaling.loads import sample
from deployments.scaling.policy import PERIOD_S, Decision, Sample, ScalingPolicy
from deployments.spec import LOAD, ModelSpec, ReplicaLoad

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 1.0
_CONNECT_S: Final = 5.0
"""Time for every ingress to connect to a replica that the manager has reached."""
_COMPARE_S: Final = 10.0
"""Time from one comparison with what Serve was told to the next: a redeployment may tell it otherwise."""

poll_pause = asyncio.sleep


class Served(Protocol):
    """The versions that the manager serves.

    Attributes:
        loaded: the specs of the deployed ones, by application.
    """

    loaded: dict[str, ModelSpec]

    async def change_served(self, application: str, *, scale: Scale) -> None:
        """Show the scale of a version to the ingresses."""

    async def publish_and_wait(self) -> None:
        """Wait until every ingress has what was shown."""


class Autoscaler:
    """Follows the load of every version with `max_replicas`.

    Args:
        served: the versions.
        open_pools: makes what opens channels to replicas; called when there is a version to scale.
        in_rollout: returns whether a model has a rollout that is on.
        forecasts: know the load of earlier days; by default of none before.
    """

    def __init__(
        self,
        served: Served,
        open_pools: Callable[[], Pools],
        in_rollout: Callable[[str], bool] = lambda _: False,
        forecasts: Forecasts | None = None,
    ) -> None:
        self._served = served
        self._in_rollout = in_rollout
        self._open_pools = open_pools
        self._forecasts = forecasts or Forecasts()
        self._versions: dict[str, ScaledVersion] = {}
        self._ray = LoneThread("scaling")

    async def run(self, is_stopping: Callable[[], bool]) -> None:
        """Scale until the manager stops."""
        await self._forecasts.read()
        while not is_stopping():
            self._follow()
            await asyncio.gather(*(version.tick() for version in self._versions.values()))
            await poll_pause(PERIOD_S)

    async def request(self, model: str) -> bool:
        """Have a scaled model served, of which no replica was reached, by its identifier.

        Returns:
            Whether it is scaled; its replicas may still be starting.
        """
        asked = [version for version in self._versions.values() if version.identifier == model]
        await asyncio.gather(*(version.request() for version in asked))
        return bool(asked)

    async def missing(self, model: str, versions: tuple[int, int], percent: float) -> str:
        """Have the candidate of a rollout start the replicas that its part of the requests needs.

        Args:
            model: its identifier.
            versions: stable and candidate.
            percent: of the requests.

        Returns:
            Which of them do not run yet, in words; "" for none.
        """
        stable, candidate = (self._served_version(model, version) for version in versions)
        if candidate is None:
            return ""
        parameters = replica_parameters(mc.ModelConfig.FromString(candidate.config))
        if not parameters.variable:
            return ""
        serving = await _replicas(self._ray, stable) if stable is not None else None
        has = await _replicas(self._ray, candidate)
        if has is None:
            return ""
        needed = parameters.started(serving.target if serving is not None else 0, percent)
        if has.target < needed:
            await self._raise(candidate, needed)
        return f"{has.running} of {needed} replicas of the candidate run" if has.running < needed else ""

    def _served_version(self, model: str, version: int) -> ModelSpec | None:
        found = (spec for spec in self._served.loaded.values() if spec.identifier == model)
        return next((spec for spec in found if spec.version == version), None)

    async def _raise(self, spec: ModelSpec, replicas: int) -> None:
        scaled = self._versions.get(spec.application)
        if scaled is not None:
            await scaled.raise_to(replicas)
        else:
            await _scale(self._ray, spec, replicas)

    @cached_property
    def _channels(self) -> Pools:
        return self._open_pools()

    def _follow(self) -> None:
        """Begin with versions that are served now, and end with those that are not."""
        served = self._served.loaded
        for application, version in list(self._versions.items()):
            # The name may be that of another load already.
            if application not in served or served[application].loaded_at != version.loaded_at:
                del self._versions[application]
                self._channels.close_control_pool(application)
        for application in served.keys() - self._versions.keys():
            spec = served[application]
            bounds = _bounds(spec.config)
            if bounds is not None:
                pool = self._channels.open_control_pool(spec.name, application)
                forecast = self._forecasts.version(spec.identifier, bounds)
                self._versions[application] = ScaledVersion(
                    spec, bounds, pool, self._served, self._in_rollout, forecast, self._ray
                )


async def _replicas(ray: LoneThread, spec: ModelSpec) -> ReplicaCounts | None:
    return await ray.run(lambda: replica_counts(spec.application, spec.name), ASK_S)


async def _scale(ray: LoneThread, spec: ModelSpec, replicas: int) -> None:
    await ray.run(lambda: scale_deployment(spec.application, spec.name, replicas), ASK_S)


@lru_cache(4096)
def _bounds(config: bytes) -> ScalingBounds | None:
    return replica_parameters(mc.ModelConfig.FromString(config)).scaling


class ScaledVersion:
    """One version, and what is known of its load.

    Attributes:
        identifier: that of its model.
        loaded_at: when its load began.
    """

    def __init__(
        self,
        spec: ModelSpec,
        bounds: ScalingBounds,
        pool: ReplicaPool,
        served: Served,
        in_rollout: Callable[[str], bool],
        forecast: VersionForecast | None,
        ray: LoneThread,
    ) -> None:
        self._ray = ray
        self.identifier = spec.identifier
        self.loaded_at = spec.loaded_at
        self._spec = spec
        self._served = served
        self._in_rollout = in_rollout
        self._forecast = forecast
        self._asleep = False
        self._reached_at = math.inf
        self._bounds = bounds
        self._pool = pool
        self._policy: ScalingPolicy | None = None
        self._reports: dict[Channel, ReplicaLoad] = {}
        self._changes: Counter[str] = Counter()
        self._nodes = 1
        self._compared_at = 0.0
        self._failure = ""

    async def request(self) -> None:
        """Start a replica if there is to be none.

        Raises:
            Exception: Serve cannot be told.
        """
        policy = await self._compared()
        if policy is not None:
            last = policy.decision
            decision = policy.request(monotonic())
            if decision.replicas != last.replicas:
                await self._change(policy, last, decision)

    async def raise_to(self, replicas: int) -> None:
        """Start replicas until there are so many, as far as there is memory for them.

        Raises:
            Exception: Serve cannot be told.
        """
        policy = await self._compared()
        if policy is not None:
            last = policy.decision
            decision = policy.raise_to(replicas, monotonic())
            if decision.replicas != last.replicas:
                await self._change(policy, last, decision)
            elif decision.reason != last.reason:
                await self._show(decision)

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
        self._nodes = len(await self._ray.run(gpus_by_node, ASK_S))
        counts = await _replicas(self._ray, self._spec)
        if counts is None:
            return None
        told = counts.target
        if self._policy is None:
            self._policy = ScalingPolicy(self._bounds, told, now)
            self._asleep = not told
            await self._show(self._policy.decision)
        self._policy.adopt(told)
        return self._policy

    async def _observe(self, policy: ScalingPolicy) -> None:
        reports = await self._read()
        before, self._reports = self._reports, reports
        running = sum(not channel.draining for channel in self._pool.channels)
        await self._wake(policy, running)
        if running and not before.keys() & reports.keys():
            return  # a reading alone tells nothing
        last = policy.decision
        taken = sample(before, reports, running, self._nodes)
        in_rollout = self._in_rollout(self.identifier)
        if in_rollout:  # any version may be given all requests at once
            taken = taken._replace(active=True, sequences=True)
        decision = policy.observe(taken, monotonic())
        expected_anew = self._forecast is not None and self._forecast.observe(taken)
        if self._forecast is not None and decision.replicas == last.replicas:
            decision = self._expect(self._forecast, policy, taken, in_rollout)
        if decision.replicas != last.replicas:
            await self._change(policy, last, decision)
        elif decision.reason != last.reason or expected_anew:
            await self._show(decision)

    def _expect(
        self, forecast: VersionForecast, policy: ScalingPolicy, taken: Sample, in_rollout: bool
    ) -> Decision:
        forecast.timed(policy.decision.replicas, taken.running)
        needed = math.ceil(taken.executing / self._bounds.target_load)
        return policy.expect(forecast.replicas(needed, in_rollout), monotonic(), forecast.outlook().text)

    async def _change(self, policy: ScalingPolicy, last: Decision, decision: Decision) -> None:
        spec = self._spec
        text = "scaling '%s' version %d from %d to %d replicas (%s: %s)"
        numbers = last.replicas, decision.replicas
        logger.info(text, spec.identifier, spec.version, *numbers, decision.reason, decision.figures)
        if not decision.replicas:  # requests must know that they have to wait before none can be sent
            self._asleep = True
            await self._show(decision)
            await self._served.publish_and_wait()
        if policy.decision is not decision:  # a request has arrived meanwhile
            return
        try:
            await _scale(self._ray, spec, decision.replicas)
        except BaseException:
            policy.adopt(last.replicas)
            raise
        self._changes[decision.reason] += 1
        await self._show(decision)

    async def _wake(self, policy: ScalingPolicy, running: int) -> None:
        """Have no request wait any more once the ingresses have had time to connect to the first replica."""
        now = monotonic()
        self._reached_at = min(self._reached_at, now) if running and policy.decision.replicas else math.inf
        if self._asleep and now - self._reached_at >= _CONNECT_S:
            self._asleep = False
            await self._show(policy.decision)

    async def _show(self, decision: Decision) -> None:
        number, reason, figures = decision
        outlook = Outlook() if self._forecast is None else self._forecast.outlook()
        changes = dict(self._changes)
        scale = Scale(number, reason, figures, changes, self._asleep, self._bounds.most, outlook)
        await self._served.change_served(self._spec.application, scale=scale)

    async def _read(self) -> dict[Channel, ReplicaLoad]:
        """Ask every replica; one that does not answer in time is left out."""
        staying = (channel for channel in self._pool.channels if not channel.draining)
        return dict(await ask(staying, LOAD, ReplicaLoad, _ANSWER_S))
