"""Names that lead out of a directory, and links that may."""

from pathlib import Path

import pytest

from app.core.files.paths import path_inside


@pytest.mark.parametrize(
    ("name", "folder", "expected"),
    [
        ("f", "", "f"),
        ("f", "1", "1/f"),
        ("a/../f", "1", "1/f"),
        ("../f", "1", "f"),
        ("", "1", "1"),
        ("...", "", "..."),
        ("..f", "", "..f"),
    ],
)
def test_names_inside(name: str, folder: str, expected: str, tmp_path: Path) -> None:
    assert path_inside(tmp_path, name, folder) == tmp_path / expected
    assert path_inside(tmp_path, str(tmp_path / folder / name)) == tmp_path / expected


@pytest.mark.parametrize("name", ["..", "../f", "1/../../f", "/etc/passwd", "/", "f\0", "../{}x/f"])
def test_names_outside(name: str, tmp_path: Path) -> None:
    assert path_inside(tmp_path, name.format(tmp_path.name)) is None


def test_links_lead_anywhere_and_the_root_stays_as_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "below")
    (tmp_path / "real" / "out").symlink_to("/etc")
    given = tmp_path / "link" / ".."  # which is "real", and not the directory of the link
    path = path_inside(given, "out/hostname")
    assert path == given / "out" / "hostname"
    assert path.parent.samefile("/etc")
    # As a name, ".." takes the link away: nothing leads to what is beside the link's target.
    assert path_inside(given, "out/../hostname") == given / "hostname"
    assert path_inside(given, "out/../../hostname") is None
