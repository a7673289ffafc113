"""The drift monitor of a manager's models."""

from deployments.drift.kept import KeptDrift
from deployments.drift.monitor import DriftMonitor, Sources
from deployments.manager.loading.catalog import Catalog
from deployments.manager.loading.lifecycle import Lifecycle
from deployments.rollout.storage.documents import Documents, Storage


def drift_monitor(
    lifecycle: Lifecycle,
    catalog: Catalog,
    storage: Storage | None = None,
) -> DriftMonitor:
    """Return what watches the models of a manager for drift.

    Args:
        lifecycle: has the models.
        catalog: has their directories.
        storage: where what is found is kept; None keeps nothing.
    """
    sources = Sources(lambda: lifecycle.effective, catalog.directory, lifecycle.publish)
    if storage is None:
        return DriftMonitor(sources)
    # What another server of these repositories has counted are no rows of this one.
    return DriftMonitor(sources, Documents(storage, "drift", KeptDrift, lambda _: False))
