"""The committed reference of settings."""

from pathlib import Path

from app.settings.reference import reference
from app.settings.settings import SETTINGS

COMMITTED = Path(__file__).parents[4] / "docs" / "operate" / "settings.md"


def test_committed_reference_is_current() -> None:
    assert COMMITTED.read_text() == reference(), "python -m app.settings.reference > docs/operate/settings.md"


def test_reference_lists_every_flag_once() -> None:
    text = reference()
    for name in SETTINGS:
        assert text.count(f"| `--{name.replace('_', '-')}` |") == 1
