"""The committed reference of metrics."""

from pathlib import Path

from app.ingress.metrics.reference import reference

COMMITTED = Path(__file__).parents[5] / "docs" / "operate" / "metrics.md"


def test_committed_reference_is_current() -> None:
    assert COMMITTED.read_text() == reference(), "PYTHONPATH=client python -m app.ingress.metrics.reference"
