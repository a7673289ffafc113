"""What `release.build` puts into a release, and what it refuses."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from release.build import check_compiled, copied

NAME = "nereid_server-1-cp311-cp311-manylinux_2_17_x86_64.whl"


def wheel(folder: Path, name: str, *libraries: bytes) -> Path:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for number, content in enumerate(libraries):
            archive.writestr(f"nereid/_server/{number}.so", content)
    return folder / name


def test_wheel_needs_no_newer_glibc_than_its_name_says(tmp_path: Path) -> None:
    check_compiled(wheel(tmp_path, NAME, b"GLIBC_2.2.5 GLIBC_2.14", b"GLIBC_2.17"))
    with pytest.raises(ValueError, match=r"1.so of .* needs glibc 2.34"):
        check_compiled(wheel(tmp_path, NAME, b"GLIBC_2.2.5", b"GLIBC_2.3 GLIBC_2.34"))
    check_compiled(wheel(tmp_path, "nereid_server-1-cp311-cp311-linux_x86_64.whl", b"GLIBC_2.34", b""))


def test_wheel_without_what_is_compiled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the two libraries"):
        check_compiled(wheel(tmp_path, NAME, b""))


def test_what_git_does_not_track_is_no_part_of_a_release(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("app/a.py", "app/notes.txt", "tests/test_a.py", "build/manual/index.html", "build/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for command in (["init", "-q"], ["add", "app/a.py", "tests/test_a.py"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    found = copied(tmp_path / "copy", root)
    assert {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()} == {
        "app/a.py",
        "manual/index.html",
    }
