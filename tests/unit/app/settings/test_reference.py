"""The committed reference of settings."""

import re
from pathlib import Path

import pytest

from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.reference import reference
from app.settings.settings import SETTINGS

COMMITTED = Path(__file__).parents[4] / "docs" / "operate" / "settings.md"


def test_committed_reference_is_current() -> None:
    assert COMMITTED.read_text() == reference(), "python -m app.settings.reference > docs/operate/settings.md"


def test_reference_lists_every_flag_once() -> None:
    text = reference()
    for name in SETTINGS:
        assert text.count(f"| `--{name.replace('_', '-')}` |") == 1


def test_bounds_have_no_exponent() -> None:
    assert not re.search(r"\de[+-]?\d", reference())
    with pytest.raises(SettingsError, match="expected an integer of at least 1048576, got 7"):
        from_args({"model_repository": ["/models"], "tape_max_bytes": "7"})
