"""A restarted manager knows the configurations that load requests have given."""

import asyncio
import logging
import os
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from deployments.manager import recovery
from deployments.manager.manager import RepositoryManager
from tests.unit.deployments.manager.manager_bench import Bench, load
from tests.unit.ensembles import ensemble, model, step

ENSEMBLE = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"))
OTHER = ensemble(step({"x": "IN"}, {"y": "OUT"}, "b"))
LIMIT = "at most 64 bytes of them are kept (model_config_override_bytes)"


def as_json(config: str) -> str:
    return str(json_format.MessageToJson(text_format.Parse(config, mc.ModelConfig())))


def called(made: RepositoryManager) -> str:
    """The model that the ensemble calls."""
    (entry,) = made.lifecycle.versions("e")
    return str(entry.model_config.ensemble_scheduling.step[0].model_name)


@pytest.fixture
def directory(bench: Bench) -> Path:
    """The directory of an ensemble that calls one of two models."""
    bench.add("a", model())
    bench.add("b", model())
    return bench.add("e", ENSEMBLE)


async def test_an_ensemble_keeps_the_configuration_of_its_load(bench: Bench, directory: Path) -> None:
    made = await bench.start_explicit("e")
    await load(made, "e", as_json(OTHER))
    again = await bench.start_explicit("e")
    assert called(again) == "b"
    await load(again, "e")
    assert called(again) == "b", "no file of it was written"
    os.utime(directory / "config.pbtxt", (1, 1))
    third = await bench.start_explicit("e")
    assert called(third) == "b", "what is loaded stays until a load"
    await load(third, "e")
    assert called(third) == "a"
    assert called(await bench.start_explicit("e")) == "a"


async def test_an_unloaded_ensemble_has_none(bench: Bench, directory: Path) -> None:
    made = await bench.start_explicit("e")
    await load(made, "e", as_json(OTHER))
    await made.unload("e")
    again = await bench.start_explicit()
    await load(again, "e")
    assert called(again) == "a"
    assert not bench.serve.store.keys("config/")


async def test_a_new_server_on_the_same_cluster_has_none(bench: Bench, directory: Path) -> None:
    made = await bench.start_explicit("e")
    await load(made, "e", as_json(OTHER))
    bench.serve.running.clear()  # `serve shutdown`, which leaves the cluster's store
    assert called(await bench.start_explicit("e")) == "a"


async def test_a_model_whose_replicas_do_not_answer_is_loaded_as_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_DESCRIBE_S", 0.01)
    bench.add("m")
    made = await bench.start_explicit("m")
    await load(made, "m", '{"backend": "identity", "max_batch_size": 2}')
    bench.serve.failures["m:1@2"] = RuntimeError("the actor died")
    again = await bench.start_explicit()
    (entry,) = again.table.applications.values()
    assert (entry.state.value, entry.model_config.max_batch_size) == ("READY", 2)


async def test_configurations_are_bounded(bench: Bench) -> None:
    bench.add("m")
    bench.add("n")
    made = await bench.start_explicit(model_config_override_bytes=64)
    config = '{"backend": "identity", "max_batch_size": 2}'
    await load(made, "m", config)
    await load(made, "m", config + " ")
    with pytest.raises(InferError) as caught:
        await load(made, "n", config)
    assert caught.value.with_code() == f"Unavailable: failed to keep the configuration of model 'n': {LIMIT}"
    await made.unload("m")
    await load(made, "n", config)


async def test_a_store_that_fails_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("no control service")

    bench.add("m")
    made = await bench.start_explicit("m")
    monkeypatch.setattr(bench.serve.store, "write", fail)
    monkeypatch.setattr(bench.serve.store, "read", fail)
    with caplog.at_level(logging.WARNING):
        await load(made, "m", '{"backend": "identity", "max_batch_size": 2}')
        assert "the configuration of 'm' is not stored beyond a restart: RuntimeError" in caplog.text
        again = await asyncio.wait_for(bench.start_explicit("m"), 60)
    (entry,) = again.table.applications.values()
    assert entry.model_config.max_batch_size == 2, "its replicas know it"
