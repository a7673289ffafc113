"""Fixtures of the backend tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.python.backend import PythonBackend
from tests import environments
from tests.unit.backend_harness import Served, config
from tests.unit.python_models import Load, text, write


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Load a model of the source; what it put into the process is gone after the test."""
    monkeypatch.setattr(sys, "argv", ["replica", "--node-ip-address=::1"])
    before = set(sys.modules), list(sys.path)
    loaded: list[Served] = []

    def load(source: str, configuration: str = "") -> Served:
        # The first in tmp_path itself, where tests look for it.
        folder = tmp_path / str(len(loaded)) if loaded else tmp_path
        served = Served(PythonBackend, config(configuration or text()), write(folder, source))
        loaded.append(served)
        return served

    yield load
    for served in loaded:
        served.close()
    assert sys.path == before[1]
    assert not {"1", "1.model", "helper"} & (set(sys.modules) - before[0])


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with numpy and without our packages."""
    return environments.make(tmp_path_factory.mktemp("environment") / "env")
