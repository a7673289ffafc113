"""What every suite shares: one real server over the example repository, started once a session."""

import gc
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from nereid.migrate import torchserve
from nereid.migrate.writing import write
from tests import environments
from tests.server import ROOT, WITH_ENGINE, EngineServer, Server, free_port
from tests.unit.nereid.migrate.sources import archive, migrated

# No deadline: a slow machine is no defect. `make test` takes fewer examples, and the same ones each time;
# `make test-unit` takes new ones, `make fuzz` looks for long.
settings.register_profile("thorough", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=40, derandomize=True, database=None)
settings.load_profile("thorough")

CONTRACT_MODELS = Path(__file__).parent / "contract" / "models"
CLOUD_PORTS = {"sagemaker": free_port(), "vertex-ai": free_port()}
OPENAI_PORT = free_port()
"""The ports of the fronts for platforms."""
VERTEX_AI_ROUTES = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
_ENVIRONMENT = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "simple", **VERTEX_AI_ROUTES}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without the collector, which would look at all that is there again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session")
def nereid_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in mode NONE over the example repository and the models of the contract suite.

    With NEREID_TEST_ENGINE it is the engine's, in one process without Ray.
    """
    log = tmp_path_factory.mktemp("nereid") / "server.log"
    own = tmp_path_factory.mktemp("own") / "environment_model"
    shutil.copytree(CONTRACT_MODELS.parent / own.name, own)
    environments.make(own / "environment")
    handlers = tmp_path_factory.mktemp("migrated")
    for model in migrated(torchserve.models(archive(tmp_path_factory.mktemp("mar") / "doubler.mar"))):
        write(model, handlers)
    repositories = [ROOT / "model_repository", CONTRACT_MODELS, own.parent, handlers]
    arguments = [f"--model-repository={path}" for path in repositories]
    arguments += ["--allow-client-shm=true", "--vertex-ai-default-model=simple"]
    arguments += ["--allow-tfserving=true", "--allow-torchserve=true", f"--openai-port={OPENAI_PORT}"]
    for platform, port in CLOUD_PORTS.items():
        arguments += [f"--allow-{platform}=true", f"--{platform}-port={port}"]
    server = (EngineServer if WITH_ENGINE else Server)(arguments, log, _ENVIRONMENT).start()
    yield server
    server.stop()
