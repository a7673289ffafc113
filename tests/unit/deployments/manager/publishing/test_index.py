"""The repository index."""

from app.routing.scale import Scale
from app.routing.table import ModelState, VersionEntry
from deployments.manager.publishing.index import index_rows


def test_index_says_how_many_replicas_a_scaled_version_has_and_why() -> None:
    def reason(scale: Scale, reason: str = "", state: ModelState = ModelState.READY) -> str:
        return index_rows([VersionEntry("m", 1, state, reason, scale=scale)], {})[0][3]

    loaded = Scale(3, "load", "load 0.93 (target 0.7), queue 4 ms")
    assert reason(loaded) == "3 replicas: load, load 0.93 (target 0.7), queue 4 ms"
    assert reason(Scale(1, "start")) == "1 replica: start"
    assert reason(loaded, "started again in 2 s") == "started again in 2 s"
    assert reason(loaded, state=ModelState.UNLOADING) == ""
