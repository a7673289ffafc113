"""Handles faults of the cluster in an ingress: logs them, and reports not ready."""

import logging

from app.ingress.service.routed import RoutedInferenceService

logger = logging.getLogger(__name__)


class ClusterReport:
    """Logs faults, and makes the server not ready for those that it cannot do without.

    It does neither once the server stops: the repository manager ends at the same time, and sooner.

    Args:
        service: is ready or not.
    """

    def __init__(self, service: RoutedInferenceService) -> None:
        self._service = service

    def unready(self, fault: str) -> None:
        """Take what makes the server not ready; "" for nothing."""
        if self._service.exiting():
            return
        if fault:
            logger.error("not ready: %s", fault)
        else:
            logger.info("ready again")
        self._service.cluster_fault = fault

    def degraded(self, fault: str) -> None:
        """Take what only keeps models from being loaded, unloaded and replaced; "" for nothing."""
        if self._service.exiting():
            return
        if fault:
            logger.error("models are served, but not loaded, unloaded or replaced: %s", fault)
        else:
            logger.info("models are loaded, unloaded and replaced again")
