"""Contents of a requirements.txt that count as a change."""

from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.environments import requirements
from deployments.environments.requirements import contents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m" / "1").mkdir(parents=True)
    return tmp_path / "m"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


REFERENCES = [
    "-r other.txt",
    "-rother.txt",
    "-c other.txt  # the versions",
    "--requirement other.txt",
    "--requirement=other.txt",
    "--constraint=./other.txt",
    "--no-index -r other.txt",
    "-r \\\n  other.txt",
    '-r "other.txt"',
    "-r ${FOLDER}/other.txt",
]


@pytest.mark.parametrize("line", REFERENCES)
def test_referenced_file_is_part_of_the_contents(
    line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", ".")
    first = write(folder / "requirements.txt", f"numpy\n{line}\n")
    absent = contents(first, folder)
    write(folder / "other.txt", "a==1\n")
    before = contents(first, folder)
    write(folder / "other.txt", "a==2\n")
    assert len({absent, before, contents(first, folder)}) == 3


def test_files_that_reference_each_other_are_read_once(folder: Path) -> None:
    first = write(folder / "1" / "requirements.txt", "-r ../all/one.txt\n")
    write(folder / "all" / "one.txt", "-r two.txt\n-r two.txt\n")
    write(folder / "all" / "two.txt", "-r ../1/requirements.txt\nx\n")
    before = contents(first, folder)
    assert before.count(b"\nx\n") == 1
    write(folder / "all" / "two.txt", "y\n")
    assert contents(first, folder) != before


@pytest.mark.parametrize(
    "line", ["# -r ../../x", "-e x", "name-r ../../x.txt", "-r https://x/../../../y", '-r "']
)
def test_other_options_reference_no_file(line: str, folder: Path) -> None:
    first = write(folder / "requirements.txt", line)
    assert line.encode() in contents(first, folder)


@pytest.mark.parametrize("named", ["../x.txt", "/etc/passwd", "${UP}/x.txt"])
def test_referenced_file_outside_is_refused(
    named: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UP", "..")
    write(folder.parent / "x.txt", "x")
    first = write(folder / "requirements.txt", "-r 1/next.txt")
    second = write(folder / "1" / "next.txt", f"-c ../{named}" if named[0] != "/" else f"-c {named}")
    with pytest.raises(InferError, match=f"'{second}' names '.*', which is outside of '{folder}'") as caught:
        contents(first, folder)
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_the_number_of_files_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "_MAX_FILES", 2)
    first = write(folder / "requirements.txt", "-r a.txt\n-r b.txt\n")
    write(folder / "a.txt", "")
    contents(first, folder)
    write(folder / "b.txt", "")
    with pytest.raises(InferError, match="names more than 2 files"):
        contents(first, folder)
