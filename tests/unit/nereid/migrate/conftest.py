"""What tests of `nereid migrate` have."""

from pathlib import Path

import pytest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for kept in ("outside/kept", "outside/.kept.migrating", "to/.kept.migrating", "to/other"):
        (tmp_path / kept).mkdir(parents=True)
        (tmp_path / kept / "file").write_text("kept")
    return tmp_path / "source"
