"""Fixtures of the replica's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.deployments.served_model_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    path.mkdir()
    return path
