"""What a load finds of versions that are in service."""

from app.routing.scale import Scale
from app.routing.table import ModelState, VersionEntry
from deployments.manager.loading.load_messages import scaled_replicas


def test_reload_starts_with_the_replicas_of_the_largest_version_in_service() -> None:
    entries = [
        VersionEntry("m", 1, ModelState.READY, scale=Scale(2)),
        VersionEntry("m", 2, ModelState.READY, scale=Scale(5)),
        VersionEntry("m", 3, ModelState.UNLOADING, scale=Scale(9)),
        VersionEntry("m", 4, ModelState.READY),
    ]
    assert scaled_replicas(entries) == 5 and scaled_replicas([]) == 0
