"""`nereid feedback`: the records of files, and what becomes of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

import nereid_client.tools.feedback as command
from nereid_client.errors import ServerError

COLUMNS = {name: name for name in ("id", "row", "score", "label", "outputs", "output")}


class FakeServer:
    """Keeps records, until it refuses."""

    made: list["FakeServer"] = []

    def __init__(self, url: str, **options: Any) -> None:
        self.url, self.options = url, options
        self.kept: list[Any] = []
        self.asked: tuple[str, str] = ("", "")
        self.made.append(self)

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def model(self, name: str, version: str) -> "FakeServer":
        self.asked = name, version
        return self

    def feedback(self, records: list[Any]) -> int:
        if len(self.kept) >= 2000:
            raise ServerError("UNSUPPORTED", "there is no tape")
        self.kept += records
        return len(records)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[FakeServer]:
    FakeServer.made = []
    monkeypatch.setattr(command, "Server", FakeServer)
    return FakeServer


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", '\ufeffid,label,score\n7,cat,\n8,3,\n9,,0.5\n10,"[1, 2]",\n'),
        (
            "a.jsonl",
            '{"id": 7, "label": "cat"}\n\n{"id": "8", "label": 3, "other": 1}\n'
            '{"id": "9", "score": 0.5, "label": null}\n{"id": "10", "label": [1, 2]}\n',
        ),
    ],
)
def test_files_are_read_by_the_names_of_columns(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert list(command.read(path, COLUMNS)) == [
        {"id": "7", "label": "cat"},
        {"id": "8", "label": 3},
        {"id": "9", "score": 0.5},
        {"id": "10", "label": [1, 2]},
    ]


def test_parquet_is_read_by_other_names(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"request": ["a", "b"], "bought": [True, False], "note": ["x", None]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = command.read(tmp_path / "a.parquet", {**COLUMNS, "id": "request", "score": "bought"})
    assert list(found) == [{"id": "a", "score": 1.0}, {"id": "b", "score": 0.0}]


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.txt", "", "its name does not end in .parquet, .csv or .jsonl"),
        (
            "a.csv",
            "key,label\n1,2\n",
            "there is no column 'id' or 'row', the columns are key, label: --id names",
        ),
        ("a.csv", "id,label\n1,2,3\n", "a line has more values than columns: ['3']"),
        ("a.jsonl", '{"id": 1}\n{', "line 2: "),
        ("a.jsonl", "[1]\n", "line 1 is no object"),
        ("a.parquet", "none", "a.parquet: "),
    ],
)
def test_a_wrong_file_says_what_is_wrong(
    server: type[FakeServer],
    tmp_path: Path,
    name: str,
    text: str,
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert command.main([str(path), "-m", "simple"]) == 2
    assert error in capsys.readouterr().err


def test_records_are_sent_and_counted(
    server: type[FakeServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEREID_TOKEN", "secret")
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"id": "{n}", "label": 1}}\n' for n in range(1500)))
    assert command.main([str(path), "-m", "simple", "-u", "host:1", "--version", "2", "--skip", "100"]) == 0
    (made,) = server.made
    assert (made.url, made.options["token"], made.asked) == ("http://host:1", "secret", ("simple", "2"))
    assert [each["id"] for each in made.kept] == [str(n) for n in range(100, 1500)]
    assert capsys.readouterr().out.startswith("1400 records were kept; ")


def test_a_refusal_says_where_to_go_on(
    server: type[FakeServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"id": str(n), "score": 1}) + "\n" for n in range(4000)))
    assert command.main([str(path), "-m", "simple", "--skip", "7"]) == 1
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "localhost:8000: [UNSUPPORTED] there is no tape",
        "2000 records were kept; --skip 2007 goes on",
    ]


def test_a_file_that_is_not_there(server: type[FakeServer], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["/none.csv", "-m", "simple"]) == 2
    assert "No such file or directory: '/none.csv'" in capsys.readouterr().err
