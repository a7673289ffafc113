"""What every suite shares: one real server over the example repository, started once a session."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import environments
from tests.server import ROOT, Server

# No deadline: a slow machine is no defect. `make test` takes fewer examples, and the same ones each time;
# `make test-unit` takes new ones, `make fuzz` looks for long.
settings.register_profile("thorough", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=40, derandomize=True, database=None)
settings.load_profile("thorough")

CONTRACT_MODELS = Path(__file__).parent / "contract" / "models"


@pytest.fixture(scope="session")
def nereid_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in mode NONE over the example repository and the models of the contract suite."""
    log = tmp_path_factory.mktemp("nereid") / "server.log"
    own = tmp_path_factory.mktemp("own") / "environment_model"
    shutil.copytree(CONTRACT_MODELS.parent / own.name, own)
    environments.make(own / "environment")
    repositories = [ROOT / "model_repository", CONTRACT_MODELS, own.parent]
    arguments = [f"--model-repository={path}" for path in repositories]
    server = Server([*arguments, "--allow-client-shm=true"], log).start()
    yield server
    server.stop()
