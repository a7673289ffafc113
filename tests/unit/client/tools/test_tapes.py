"""What of a tape cannot be read is told on standard error by every command that reads one."""

import re
from pathlib import Path
from typing import Final

import pytest

from nereid.commands.drift.sources import Choice, of_tape
from nereid.commands.tape.command import main as tape_command
from nereid_client.tape.rows import TapeError
from nereid_client.tape.segments import cut, seal
from nereid_client.tools.perf.inputs import read_inputs
from nereid_client.tools.perf.options import Address, Options
from nereid_client.tools.perf.recorded import pauses
from nereid_client.tools.tapes import opened
from tests.unit.client.tape.made import row, write
from tests.unit.client.tools.perf.test_recorded import TAKES, recorded

ROOT: Final = Path(__file__).parents[4]
TELL_BY_THEMSELVES: Final = {
    "client/nereid_client/tools/tapes.py",
    "client/nereid_client/tools/replay/command.py",  # in its report, with all that is not repeated
    "client/nereid_client/tools/replay/session.py",  # its own file
    "nereid/optimise/trials/rows.py",  # rows that the command has chosen
}


def damaged(directory: Path) -> str:
    """Write a tape that has lost its last row, and a file that is none; return what is to be told."""
    path = write(directory / "ab-1.open", [recorded(1), recorded(2), recorded(3)])
    whole, counted = path.read_bytes(), cut(path)
    path = seal(path, counted)
    sealed = bytearray(path.read_bytes())
    sealed[whole.rindex(b"REC1") + 20] ^= 1  # in the frame of the last row
    path.write_bytes(sealed)
    none = directory / "zz-1.tape"
    none.write_bytes(b"none")
    return f"{path}: 1 row is damaged or missing\n{none}: '{none}' is no file of a tape\n"


def test_troubles_are_told_once_however_often_a_tape_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = damaged(tmp_path)
    for _ in range(2):
        with opened(tmp_path) as tape:
            assert len([*tape.rows()]) == 2
    assert capsys.readouterr().err == said


def test_troubles_are_told_by_what_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = damaged(tmp_path)
    with pytest.raises(TapeError), opened(tmp_path) as tape:
        assert len([*tape.rows()]) == 2
        raise TapeError("no row fits")
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("command", ["perf --input-data", "perf --request-intervals", "drift", "tape show"])
def test_command_tells_what_it_cannot_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = damaged(tmp_path)
    if command == "perf --input-data":
        assert len(read_inputs(Options("simple", Address("http", "h", 1), data=str(tmp_path)), TAKES)) == 2
    elif command == "perf --request-intervals":
        assert len(pauses(tmp_path, "simple")) == 2
    elif command == "drift":
        of_tape(str(tmp_path), Choice("simple"), True, 10)
    else:
        assert tape_command(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().err == said


def test_whole_tape_is_nothing_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "ab-1.open", [row(1), row(2)])
    with opened(tmp_path) as tape:
        assert len([*tape.rows()]) == 2
    assert capsys.readouterr().err == ""


def test_commands_open_tapes_in_one_place() -> None:
    trees = ("client/nereid_client/tools", "nereid")
    paths = {str(path.relative_to(ROOT)): path for tree in trees for path in (ROOT / tree).rglob("*.py")}
    found = {name for name, path in paths.items() if re.search(r"\bTape\(", path.read_text())}
    assert found == TELL_BY_THEMSELVES
