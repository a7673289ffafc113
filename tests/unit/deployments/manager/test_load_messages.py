"""Entries of loaded versions."""

import pytest

from app.routing.scale import Scale
from app.routing.table import ModelState, VersionEntry
from deployments.manager.load_messages import index_rows, ready_entry, scaled_replicas
from deployments.spec import Description, ModelSpec


@pytest.mark.parametrize("makes_calls", [False, True])
def test_ready_entry_has_the_fields_of_the_description(makes_calls: bool) -> None:
    spec = ModelSpec("m", 2, "", b"", "m:2", "", bytes(32), namespace="/models")
    labels: dict[str, tuple[str, ...]] = {"OUTPUT0": ("zero", "one")}
    entry = ready_entry(Description(spec, b"config", labels, 1.5, makes_calls=makes_calls))
    assert (entry.name, entry.version, entry.state) == ("/models::m", 2, ModelState.READY)
    assert (entry.application, entry.config, entry.labels) == ("m:2", b"config", labels)
    assert (entry.load_seconds, entry.makes_calls) == (1.5, makes_calls)


def test_index_says_how_many_replicas_a_scaled_version_has_and_why() -> None:
    def reason(scale: Scale, reason: str = "", state: ModelState = ModelState.READY) -> str:
        return index_rows([VersionEntry("m", 1, state, reason, scale=scale)], {})[0][3]

    loaded = Scale(3, "load", "load 0.93 (target 0.7), queue 4 ms")
    assert reason(loaded) == "3 replicas: load, load 0.93 (target 0.7), queue 4 ms"
    assert reason(Scale(1, "start")) == "1 replica: start"
    assert reason(loaded, "started again in 2 s") == "started again in 2 s"
    assert reason(loaded, state=ModelState.UNLOADING) == ""


def test_reload_starts_with_the_replicas_of_the_largest_version_in_service() -> None:
    entries = [
        VersionEntry("m", 1, ModelState.READY, scale=Scale(2)),
        VersionEntry("m", 2, ModelState.READY, scale=Scale(5)),
        VersionEntry("m", 3, ModelState.UNLOADING, scale=Scale(9)),
        VersionEntry("m", 4, ModelState.READY),
    ]
    assert scaled_replicas(entries) == 5 and scaled_replicas([]) == 0
