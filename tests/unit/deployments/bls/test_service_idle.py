"""Calls of a Python model to a model that is not loaded."""

import threading

import pytest

from app.core.errors import unavailable
from app.routing.table import IDLE, ModelState, NotLoaded, VersionEntry
from backends.python.api import pb_utils
from tests.unit.bls_bench import Bench
from tests.unit.deployments.bls.test_service import bench, output, request  # noqa: F401 - a fixture


@pytest.mark.parametrize("failure", [None, "failed to load 'm'"])
def test_a_call_waits_for_the_load_that_tells_its_inputs(bench: Bench, failure: str | None) -> None:  # noqa: F811
    loaded, waited = bench.models.resolve, threading.Event()

    def resolve(name: str, version: str = "") -> VersionEntry:
        if waited.is_set():
            return loaded(name, version)
        raise NotLoaded(VersionEntry(name, 1, ModelState.READY, IDLE))

    async def wait_loaded(found: VersionEntry) -> None:
        waited.set()
        if failure is not None:
            raise unavailable(failure)

    bench.models.resolve = resolve  # type: ignore[method-assign]
    bench.models.wait_loaded = wait_loaded  # type: ignore[attr-defined]
    assert pb_utils.is_model_ready("m")
    bench.answers.append(lambda asked: asked.answer(output(7)))
    response = request().exec()
    assert waited.is_set()
    if failure is None:
        assert not response.has_error()
    else:
        assert response.error().message() == failure
