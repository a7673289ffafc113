"""Processes of models in a directory of their own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.deployments.model_process.process_bench import ProcessBench, end_servers


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a short path; its fork server ends with the test."""
    with tempfile.TemporaryDirectory(prefix="n") as path:
        yield Path(path)
        end_servers(Path(path))


@pytest.fixture
def bench(sockets: Path) -> Iterator[ProcessBench]:
    made = ProcessBench(sockets)
    yield made
    made.close()
