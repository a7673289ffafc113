"""Entries of versions that have loaded."""

import pytest

from app.routing.table import ModelState
from deployments.manager.publishing.entries import ready_entry
from deployments.spec import Description, ModelSpec


@pytest.mark.parametrize("makes_calls", [False, True])
def test_ready_entry_has_the_fields_of_the_description(makes_calls: bool) -> None:
    spec = ModelSpec("m", 2, "", b"", "m:2", "", bytes(32), namespace="/models")
    labels: dict[str, tuple[str, ...]] = {"OUTPUT0": ("zero", "one")}
    entry = ready_entry(Description(spec, b"config", labels, 1.5, makes_calls=makes_calls))
    assert (entry.name, entry.version, entry.state) == ("/models::m", 2, ModelState.READY)
    assert (entry.application, entry.config, entry.labels) == ("m:2", b"config", labels)
    assert (entry.load_seconds, entry.makes_calls) == (1.5, makes_calls)
