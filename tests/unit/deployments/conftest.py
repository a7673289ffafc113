"""Fixtures of the replica's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.native.choice import missing
from app.transport.wire import compiled
from tests.unit.deployments.served_model_bench import Bench


@pytest.fixture(params=["python", "native"])
def data_plane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have plain requests handled by Python, or by the extension where it is compiled."""
    if request.param == "native" and missing():
        pytest.skip(missing())
    monkeypatch.setattr(compiled, "is_native", lambda _: request.param == "native")
    return str(request.param)


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
