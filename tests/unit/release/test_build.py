"""What `release.build` puts into a release, and what it refuses."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from release.build import check_compiled, copied, lent_setuptools
from release.check import installed

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


def test_python_without_setuptools_is_lent_some(tmp_path: Path) -> None:
    """Where it has none (-S: as if nothing were installed), its wheel is built all the same."""
    found = "import setuptools.build_meta, importlib.metadata as m; print(m.version('setuptools'))"
    command = [sys.executable, "-S", "-c", found]
    lent = {"PYTHONPATH": str(lent_setuptools(tmp_path / "lent"))}
    assert subprocess.run(command, env={}, capture_output=True, check=False).returncode
    assert subprocess.run(command, env=lent, capture_output=True, check=True).stdout


def test_check_wants_a_wheel_for_each_python(tmp_path: Path) -> None:
    wheel(tmp_path, "nereid_server-1-cp27-cp27-manylinux_2_17_x86_64.whl", b"", b"")
    with pytest.raises(ValueError, match=r"has not one compiled wheel for .* \(cp3"):
        installed(sys.executable, tmp_path, None, tmp_path)
