"""The table of changes in Ray's processes, its switch, and the page about them."""

import re
from pathlib import Path

import pytest

from app.ray_adapter.local import changes
from app.ray_adapter.local.changes import CHANGES, SWITCH, applies, check_switch
from tests.server import ROOT

FOLDER = ROOT / "app" / "ray_adapter"
NAMES = [change.name for change in CHANGES]


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
def test_a_change_has_a_module_a_test_and_a_row_of_the_page(change: changes.Change) -> None:
    assert (FOLDER / change.module).is_file()
    assert (Path(__file__).parents[1] / change.test).is_file()
    page = (ROOT / "docs" / "develop" / "ray.md").read_text()
    assert f"| `{change.name}` |" in page


def test_every_change_has_its_switch_in_the_source() -> None:
    sources = [*FOLDER.rglob("*.py"), ROOT / "nereid" / "controller.py"]
    asked = [name for path in sources for name in re.findall(r'applies\("([\w-]+)"\)', path.read_text())]
    assert {*asked} == {*NAMES}


def test_a_change_is_left_out_by_name_or_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert all(map(applies, NAMES))
    monkeypatch.setenv(SWITCH, "spread, helpers")
    assert [name for name in NAMES if not applies(name)] == ["helpers", "spread"]
    check_switch()
    monkeypatch.setenv(SWITCH, "all")
    assert not any(map(applies, NAMES))
    check_switch()


def test_a_name_that_is_no_change_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "spread,forks")
    with pytest.raises(ValueError, match=r"names 'forks'; there are agents, all, controller-pace"):
        check_switch()
    with pytest.raises(ValueError, match="'forks' is no change of Ray"):
        applies("forks")
