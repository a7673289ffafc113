"""Logs once a second what a stopping server waits for, in the words of tritonserver (`HTTPServer::Stop`)."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from app.dispatch.router import Router
from app.ingress.fronts import Front
from app.routing.table import VersionEntry

logger = logging.getLogger(__name__)

_REPORT_S: Final = 1.0


class ExitReport:
    """Logs what a stop waits for, with the seconds that are left.

    Args:
        timeout_s: `--exit-timeout-secs`, one countdown for all.
        fronts: have stopped to listen.
        router: knows the requests in flight.
    """

    def __init__(self, timeout_s: int, fronts: Sequence[Front], router: Router) -> None:
        self._left = timeout_s
        self._fronts = fronts
        self._router = router

    async def run(self) -> None:
        """Log once a second until the time is over."""
        while self._left > 0:
            connections = {front.service: front.connections for front in self._fronts}
            for line in waiting_lines(self._left, connections, self._router.in_flight()):
                logger.info("%s", line)
            await asyncio.sleep(_REPORT_S)
            self._left -= 1

    def finish(self) -> None:
        """Log that the fronts have stopped, and that the models will."""
        logger.info("Waiting for in-flight requests to complete.")
        logger.info("Timeout %d: Found 0 model versions that have in-flight inferences", self._left)
        logger.info("All models are stopped, unloading models")
        logger.info(
            "Timeout %d: Found %d live models and 0 in-flight non-inference requests",
            self._left,
            len(self._router.table.ready),
        )


def waiting_lines(
    left: int, connections: Mapping[str, int], in_flight: Sequence[tuple[VersionEntry, int]]
) -> Iterator[str]:
    """Return what a stop waits for, with `left` seconds: connections by service, and models' requests."""
    for service, count in connections.items():
        if count:
            yield f"Timeout {left}: Found {count} {service}"
    if in_flight:
        yield f"Timeout {left}: Found {len(in_flight)} model versions that have in-flight inferences"
    for entry, count in in_flight:
        yield f"Model '{entry.model}' (version {entry.version}) has {count} in-flight inferences"
