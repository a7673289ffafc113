"""No source file is longer than one sitting."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LIMIT = 400


FOLDERS = ("app", "backends", "client", "deployments", "nereid", "benchmarks", "tests")


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_short(folder: str) -> None:
    paths = [path for kind in ("*.py", "*.c", "*.cpp", "*.h") for path in (ROOT / folder).rglob(kind)]
    lengths = {path: len(path.read_text().splitlines()) for path in paths}
    assert lengths
    assert {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines >= LIMIT} == {}
