"""A model behind the sequence batcher."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.deployments.scheduling.sequence.sequence_bench import SequenceBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SequenceBench]:
    made = SequenceBench(tmp_path)
    yield made
    made.close()
