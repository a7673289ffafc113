"""Moves replicas to nodes that came later, so that the loss of a node takes as few of a model as can be.

Serve places a replica when it starts, and moves none. One more is started, which Serve's controller places on
the emptiest node; when it runs, one ends, which it takes from the fullest
(`app/ray_adapter/serve/placement.py`). A replica that ends first finishes its requests, while others get the
new ones.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.identifiers import deployment_name
from app.core.system.lone_thread import LoneThread
from app.ray_adapter.node import ASK_S, free_resources
from app.ray_adapter.serve.applications import Replicas, replicas_by_deployment, scale_deployment
from deployments.parameters import replica_parameters
from deployments.spec import ModelSpec

logger = logging.getLogger(__name__)

LOOK_S: Final = 2.0
_WATCH_S: Final = 120.0
"""How long replicas are watched after the nodes have changed: those that were lost start again meanwhile."""
_MOVE_S: Final = 300.0
"""Time for a further replica to start, which loads the model."""

poll_pause = asyncio.sleep


def is_uneven(nodes: Collection[str], free: Collection[str]) -> bool:
    """Return whether a move would spread replicas better.

    Args:
        nodes: the node of each replica.
        free: nodes that have room for a further one.
    """
    counts = Counter(nodes)
    return bool(nodes) and max(counts.values()) - min((counts[node] for node in free), default=1 << 30) > 1


class Spreading:
    """Watches the replicas of models for a while after the nodes have changed, and moves them.

    Models with sequences are left alone: the state of a sequence stays in its replica.

    Args:
        loaded: returns the specs of the versions that are served, by application.
    """

    def __init__(self, loaded: Callable[[], Mapping[str, ModelSpec]]) -> None:
        self._loaded = loaded
        self._until = 0.0
        self._moves: dict[str, tuple[int, float]] = {}
        """By application: the replicas before, and when it began."""
        self._left: dict[str, int] = {}
        """Moves that an application may have until the nodes change next, should they be in vain."""
        self._failure = ""
        self._ray = LoneThread("replicas on nodes")

    def nodes_changed(self) -> None:
        """Look at the replicas from now on, for a while."""
        self._until = monotonic() + _WATCH_S
        self._left.clear()

    async def run(self, is_stopping: Callable[[], bool]) -> None:
        """Move replicas until the manager stops; a failure is logged once, and the work tried again."""
        while not is_stopping():
            try:
                if self._moves or monotonic() < self._until:
                    await self._look()
                self._failure = ""
            except Exception as error:
                if repr(error) != self._failure:
                    self._failure = repr(error)
                    logger.error("cannot spread replicas over the nodes: %s", self._failure)
            await poll_pause(LOOK_S)

    async def _look(self) -> None:
        free = await self._ray.run(free_resources, ASK_S)
        placed = await self._ray.run(replicas_by_deployment, ASK_S)
        for application, spec in list(self._loaded().items()):
            found = placed.get((application, deployment_name(spec.name)))
            if found is not None:
                await self._consider(spec, found, free)
        for application in self._moves.keys() - self._loaded().keys():
            del self._moves[application]

    async def _consider(self, spec: ModelSpec, found: Replicas, free: Mapping[str, dict[str, float]]) -> None:
        name, running = spec.application, len(found.nodes)
        if name not in self._moves and is_whole(found):
            parameters = replica_parameters(mc.ModelConfig.FromString(spec.config))
            if parameters.scaling is None and running == parameters.replicas + 1:
                self._moves[name] = parameters.replicas, monotonic()  # begun by an earlier manager
            elif self._left.setdefault(name, running) and self._may_move(spec, found, free):
                await self._begin(spec, running)
        elif name in self._moves:
            before, begun = self._moves[name]
            late = monotonic() - begun > _MOVE_S
            if found.target != before + 1 or running > before or late:
                self._left[name] = 0 if late else self._left.get(name, 1) - 1
                await self._end(spec, before, found.target)

    async def _begin(self, spec: ModelSpec, replicas: int) -> None:
        text = "spreading '%s' version %d: its %d replicas could be on more nodes, or more evenly there"
        logger.info(text, spec.identifier, spec.version, replicas)
        await self._scale(spec, replicas + 1)
        self._moves[spec.application] = replicas, monotonic()

    async def _end(self, spec: ModelSpec, before: int, target: int) -> None:
        """End a move, unless something else has changed the number meanwhile."""
        if target == before + 1:
            await self._scale(spec, before)
        del self._moves[spec.application]
        self._until = max(self._until, monotonic() + _WATCH_S)

    async def _scale(self, spec: ModelSpec, replicas: int) -> None:
        await self._ray.run(lambda: scale_deployment(spec.application, spec.name, replicas), ASK_S)

    def _may_move(self, spec: ModelSpec, found: Replicas, free: Mapping[str, dict[str, float]]) -> bool:
        config = mc.ModelConfig.FromString(spec.config)
        parameters = replica_parameters(config)
        if parameters.packed or not parameters.variable or config.HasField("sequence_batching"):
            return False
        needed = {**parameters.resources, "CPU": parameters.num_cpus, "memory": parameters.memory_bytes}
        fitting = [node for node, has in free.items() if _fits(needed, has)]
        return is_uneven(found.nodes, fitting)


def is_whole(found: Replicas) -> bool:
    """Return whether Serve has as many replicas as it was told, all of which run."""
    return found.target == found.present == len(found.nodes)


def _fits(needed: Mapping[str, float], has: Mapping[str, float]) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in needed.items() if amount)
