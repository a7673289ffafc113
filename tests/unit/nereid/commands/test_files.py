"""`nereid files`, of this checkout; `tests/cluster/test_wheel.py` has that of a wheel."""

from pathlib import Path

import pytest

from nereid.commands import files
from tests.server import ROOT


@pytest.mark.parametrize(
    ("what", "name", "original"),
    [
        ("grafana", "nereid-fleet.json", "cluster/grafana/nereid-fleet.json"),
        ("prometheus", "nereid.rules.yml", "cluster/prometheus/nereid.rules.yml"),
        ("systemd", "nereid.service", "cluster/systemd/nereid.service"),
        ("kubernetes", "rayservice.yaml", "cluster/kubernetes/rayservice.yaml"),
        ("helm", "nereid/nereid.rules.yml", "cluster/prometheus/nereid.rules.yml"),
        ("ray", "cluster.yaml", "cluster/cluster.yaml"),
        ("docs", "operate/nodes.md", "docs/operate/nodes.md"),
    ],
)
def test_files_are_written_and_named(
    what: str, name: str, original: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "new" / what
    assert files.main([what, str(place)]) == 0
    assert (place / name).read_bytes() == (ROOT / original).read_bytes()
    assert str(place / name) in capsys.readouterr().out.splitlines()
    assert not list(place.rglob("*.py"))
    assert files.main([what, str(place)]) == 0, "the same files may be written again"


def test_other_files_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "nereid.rules.yml"
    mine.write_text("mine")
    assert files.main(["prometheus", str(tmp_path)]) == 1
    assert "--force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["nereid.rules.yml"], "nothing was written"
    assert files.main(["prometheus", str(tmp_path), "--force"]) == 0
    assert mine.read_text() != "mine"


def test_installation_without_files_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    assert files.main(["docs", str(tmp_path / "out")]) == 1
    assert "has no such files" in capsys.readouterr().err
