"""`nereid tape` over tapes that are made here."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.core.feedback.records import Feedback
from app.core.installed.installation import install_command
from app.feedback.book import Book
from app.feedback.row_index import RowIndex
from nereid.commands.tape.command import main
from nereid.commands.tape.removal import without
from nereid_client.tape.reader import Tape
from nereid_client.tape.records import RecordFile
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from nereid_client.tape.segments import count, seal
from nereid_client.tape.where import parse_where
from tests.unit.client.tape.made import row, write


def tensor(name: str, datatype: str, values: Any, shape: tuple[int, ...]) -> TapeTensor:
    data = values if isinstance(values, bytes) else values.tobytes()
    return TapeTensor(name, datatype, shape, data, len(data))


def request(number: int, **changed: Any) -> Row:
    x = tensor("x", "FP32", np.arange(4, dtype="<f4") + number, (2, 2))
    out = tensor("out", "INT64", np.array([number, -number], "<i8"), (2,))
    answer = TapeResponse(2_000_000 * number, (out,), final=True)
    fields: dict[str, Any] = {"id": f"r{number}", "version": "1", "inputs": (x,), "responses": (answer,)}
    return row(number, 100.0 + number, **{**fields, **changed})


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """A tape of two nodes: a sealed segment of three rows, an open one of one."""
    failed = (TapeResponse(1_000_000, (), "INTERNAL", "no \x1b[31m luck", True),)
    rows = [request(1), request(2, token="web", flags=("redacted",)), request(3, responses=failed)]
    path = write(tmp_path / "tape/one/ab-000001.open", rows)
    with RecordFile(path) as file:
        counted = count(file)
    seal(path, counted)
    write(tmp_path / "tape/two/cd-000001.open", [request(4, model="other", ingress="cd")])
    return tmp_path / "tape"


def run(*argv: Any) -> int:
    return main([str(each) for each in argv])


def say(tape: Path) -> None:
    book, index = Book(tape / "one"), RowIndex(tape / "one")
    book.append("simple", "", [Feedback(id="r1", outputs={"out": [1, -1]}), Feedback(id="r2", score=0.5)])
    assert book.join(index) == 2
    book.close()


def test_ls_tells_segments_models_and_scores(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(tape)
    assert run("ls", tape) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["one/ab-000001.tape", "sealed", "3"]
    assert lines[2].split()[:3] == ["two/cd-000001.open", "open", "1"]
    assert [line.split()[:5] for line in lines[5:7]] == [["other", "1"], ["simple", "3", "1", "2", "0.7500"]]
    assert run("ls", tape, "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["rows"] for each in found[:2]] == [3, 1]
    assert found[2]["feedback"]["received"] == 2


def test_show_prints_the_newest_rows_first(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(tape)
    assert run("show", tape, "--last", 3) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["cd-4", "ab-3", "ab-2"]
    assert "INTERNAL: no  [31m luck" in lines[2]
    assert lines[3].split()[-1] == "0.5"
    assert run("show", tape, "--where", "failed and model=simple") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_show_prints_one_row_in_full(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(tape)
    assert run("show", tape, "ab-1") == 0
    text = capsys.readouterr().out
    assert "model         simple version 1\n" in text
    assert 'feedback      score 1, right: {"out":[1,-1]}\n' in text
    assert "  input x FP32[2,2], 16 B\n    [[1. 2.]\n     [3. 4.]]\n" in text
    assert "response 1, after 2.000 ms\n  output out INT64[2], 16 B\n    [ 1 -1]\n" in text
    assert run("show", tape, "ab-99") == 1
    assert capsys.readouterr().err == "no row has the key 'ab-99'\n"


def test_show_prints_lines_of_json(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", tape, "--json", "--where", "id=r2") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["key"], found["token"], found["latency_ms"]) == ("ab-2", "web", 4.0)
    assert found["inputs"][0]["data"] == [2, 3, 4, 5]
    assert found["responses"][0]["outputs"][0]["shape"] == [2]


def test_wrong_arguments_say_what_is_wrong(
    tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", tape, "--where", "colour=red") == 2
    assert "there is no 'colour'" in capsys.readouterr().err
    assert run("ls", tmp_path / "none") == 1
    assert capsys.readouterr().err == f"nereid tape ls: there is no tape at '{tmp_path}/none'\n"
    (tmp_path / "empty").mkdir()
    assert run("ls", tmp_path / "empty") == 1
    assert "has no tape" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["ls", "show", "export", "rm"])
def test_each_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(command, "--help")
    assert f"example: nereid tape {command} DIR" in capsys.readouterr().out


def test_export_writes_lists_beside_their_shapes(tape: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    say(tape)
    assert run("export", tape, tmp_path / "rows.parquet") == 0
    table = pq.read_table(tmp_path / "rows.parquet")
    found = table.to_pylist()
    assert [each["key"] for each in found] == ["ab-1", "ab-2", "ab-3", "cd-4"]
    assert [each["score"] for each in found] == [1.0, 0.5, None, None]
    assert (found[0]["in.x"], found[0]["in.x.shape"]) == ([1, 2, 3, 4], [2, 2])
    assert (found[2]["out.out"], found[2]["out.out.shape"]) == (None, None)
    assert found[2]["code"] == "INTERNAL"
    assert str(table.schema.field("in.x").type) == "list<element: float>"
    assert run("export", tape, tmp_path / "rows.parquet") == 1  # nothing is written over


def test_export_splits_batches(tape: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    assert (
        run("export", tape, tmp_path / "rows.parquet", "--split", "--where", "model=simple,not failed") == 0
    )
    found = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [(each["key"], each["number"], each["in.x"], each["out.out"]) for each in found] == [
        ("ab-1", 0, [1, 2], [1]),
        ("ab-1", 1, [3, 4], [-1]),
        ("ab-2", 0, [2, 3], [2]),
        ("ab-2", 1, [4, 5], [-2]),
    ]
    assert found[0]["in.x.shape"] == [2]


def test_export_of_every_datatype(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    kinds = {
        "BOOL": ("?", [True, False]),
        "UINT8": ("u1", [1, 255]),
        "INT64": ("<i8", [-(2**62), 5]),
        "FP16": ("<f2", [0.5, -2]),
        "FP64": ("<f8", [0.1, 1e300]),
        "BF16": ("<u2", [0x3F80, 0xC000]),
    }
    made = [tensor(name, name, np.array(values, kind), (2,)) for name, (kind, values) in kinds.items()]
    made.append(tensor("TEXT", "BYTES", b"\x02\0\0\0ab\x01\0\0\0\xff", (2,)))
    made.append(TapeTensor("LEFT", "BYTES", (3,), b"", 100, "size"))
    write(tmp_path / "ab-1.tape", [row(1, inputs=tuple(made), responses=())])
    assert run("export", tmp_path, tmp_path / "rows.parquet") == 0
    table = pq.read_table(tmp_path / "rows.parquet")
    (found,) = table.to_pylist()
    assert {name: found[f"in.{name}"] for name in kinds} == {
        name: values for name, (_, values) in kinds.items()
    }
    assert found["in.TEXT"] == [b"ab", b"\xff"]
    assert (found["in.LEFT"], found["in.LEFT.shape"]) == (None, [3])
    assert table.schema.field("in.BF16").metadata[b"datatype"] == b"BF16"


def test_export_refuses_one_name_of_two_datatypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(1), row(2, model="b", inputs=(tensor("IN", "INT8", b"\1", (1,)),))]
    write(tmp_path / "ab-1.tape", rows)
    pytest.importorskip("pyarrow")
    assert run("export", tmp_path, tmp_path / "rows.parquet") == 1
    assert "'in.IN' is FP32 and, in row ab-2 of model 'b', INT8" in capsys.readouterr().err
    assert not [*tmp_path.glob("*parquet*")]


def test_export_names_what_it_needs(
    tape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "nereid.commands.tape.export", raising=False)
    assert run("export", tape, tmp_path / "rows.parquet") == 1
    assert install_command("batch") in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "nereid.commands.tape.export", raising=False)


def test_rm_forgets_rows_and_what_was_said(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(tape)
    before = [each for each in Tape(tape).rows() if each.id != "r2"]
    assert run("rm", tape, "--where", "id=r2") == 1
    assert capsys.readouterr().err == "1 row was not removed without --yes\n"
    assert run("rm", tape, "--where", "id=r2", "--yes") == 0
    assert "1 row was removed, and what was said of 1\n" in capsys.readouterr().out
    left = [*Tape(tape).rows()]
    assert [each.key for each in left] == [each.key for each in before]
    assert [bytes(each.inputs[0].data) for each in left] == [bytes(each.inputs[0].data) for each in before]
    assert Tape(tape).segments()[0].counted.rows == 2
    assert run("rm", tape, "--where", "id=r2", "--yes") == 1  # none is left


def test_rm_deletes_a_segment_without_rows(tape: Path) -> None:
    assert run("rm", tape, "--where", "model=simple", "--yes") == 0
    assert [each.path.name for each in Tape(tape).segments()] == ["cd-000001.tape"]  # its server has ended


def test_rm_of_all_rows_forgets_what_was_said(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(tape)
    assert run("rm", tape, "--where", "bytes>0", "--yes") == 0
    assert "4 rows were removed, and what was said of 2\n" in capsys.readouterr().out


def test_rm_keeps_rows_that_it_cannot_read(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tape / "one/ab-000001.tape"
    damaged = bytearray(path.read_bytes())
    second = damaged.index(b"REC1", damaged.index(b"REC1") + 1)
    damaged[second + 20] ^= 1
    path.write_bytes(damaged)
    assert run("rm", tape, "--where", "bytes>0", "--yes") == 1
    captured = capsys.readouterr()
    assert "2 or more of its rows cannot be read, only deleted with the file" in captured.err
    assert "1 row was removed" in captured.out, "that of the other segment"
    assert path.read_bytes() == damaged
    assert run("ls", tape) == 0
    assert run("show", tape) == 0
    assert "2 rows are damaged or missing" in capsys.readouterr().err


def test_rm_leaves_what_a_server_writes(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    with open(tape / "two/cd-000001.open", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run("rm", tape, "--where", "latency_ms>3", "--yes") == 1
    captured = capsys.readouterr()
    assert "1 row was removed" in captured.out
    assert "1 more in segments that a server is writing" in captured.err


def test_a_crash_of_rm_leaves_the_segment(tape: Path) -> None:
    path = tape / "one/ab-000001.tape"
    before = path.read_bytes()

    def crash(made: Path, old: Path) -> None:
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        without(path, parse_where("id=r2"), crash)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]
