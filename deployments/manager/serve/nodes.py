"""Follows the nodes of the cluster: their GPUs, and an ingress on each of them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from app.core.system.lone_thread import LoneThread
from app.ray_adapter.node import ASK_S, gpus_by_node
from app.ray_adapter.serve.applications import scale_deployment
from deployments.manager.serve import applications

logger = logging.getLogger(__name__)

POLL_S: Final = 1.0
_LEAVE_S: Final = 5.0
_COMPARE_POLLS: Final = 5
"""Polls from one comparison with what Serve runs to the next: a redeployment starts over with one node's."""

poll_pause = asyncio.sleep


class IngressCount:
    """Decides how many ingress replicas there are to be: as many on every node. Pure.

    More than fit on the nodes would stay pending, and ask a node autoscaler for nodes. After a loss the
    number falls with a delay: Serve would stop replicas that run, if it did not know yet which ones are lost.

    Args:
        per_node: ingress replicas of a node.
    """

    def __init__(self, per_node: int) -> None:
        self._per_node = per_node
        self._nodes = 0
        self._fewer_since: float | None = None

    def observe(self, nodes: int, now: float) -> int:
        """Return the number for a cluster with so many live nodes; `now` is in seconds."""
        if nodes >= self._nodes:
            self._nodes, self._fewer_since = nodes, None
        elif self._fewer_since is None:
            self._fewer_since = now
        elif now - self._fewer_since >= _LEAVE_S:
            self._nodes, self._fewer_since = nodes, None
        return self._nodes * self._per_node


class NodeWatch:
    """Polls the nodes of the cluster.

    Args:
        ingress: the application and deployment of the ingresses.
        per_node: ingress replicas of a node.
        changed: called with the number of GPUs of each live node, when that changes.
    """

    def __init__(
        self, ingress: tuple[str, str], per_node: int, changed: Callable[[Sequence[int]], None]
    ) -> None:
        self._ingress = ingress
        self._count = IngressCount(per_node)
        self._changed = changed
        self._seen: list[int] = []
        self._polls = self._wanted = 0
        self._failure = ""
        self._ray = LoneThread("nodes of the cluster")

    async def run(self, is_stopping: Callable[[], bool]) -> None:
        """Poll until the manager stops; a failure is logged once, and the work tried again."""
        while not is_stopping():
            try:
                await self._poll()
                self._failure = ""
            except Exception as error:
                if str(error) != self._failure:
                    self._failure = str(error)
                    logger.error("cannot run an ingress on every node: %s", error)
            await poll_pause(POLL_S)

    async def _poll(self) -> None:
        nodes = await self._ray.run(gpus_by_node, ASK_S)
        if nodes != self._seen:
            self._seen = nodes
            self._changed(nodes)
        wanted = self._count.observe(len(nodes), monotonic())
        self._polls += 1
        if wanted != self._wanted or self._polls % _COMPARE_POLLS == 0:
            await self._scale(wanted)
            self._wanted = wanted

    async def _scale(self, wanted: int) -> None:
        if wanted != await applications.started_replicas(*self._ingress):
            logger.info("running %d ingress replicas on the nodes of the cluster", wanted)
            await self._ray.run(lambda: scale_deployment(*self._ingress, wanted), ASK_S)


def warn_of_nodes_out_of_reach(nodes: int, address: str) -> None:
    """Log that replicas which listen on this address serve no ingress of another node, if there is one."""
    if nodes > 1:
        logger.warning(
            "the cluster has %d nodes, but replicas listen on %s only: models on other nodes than their "
            "ingress are out of reach; set channel_address to 'node'",
            nodes,
            address,
        )
