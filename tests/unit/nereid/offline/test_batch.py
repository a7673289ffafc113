"""`nereid batch`, with real models in this process."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.offline.blocks import Block
from nereid.offline.columns import output_column
from nereid.offline.command import main
from nereid.offline.output import Output
from tests.unit.nereid.engine.repositories import DECOUPLED, FP32, add_ensemble, add_model

BATCHED = """
max_batch_size: 4
dynamic_batching { max_queue_delay_microseconds: 1000 }
input [ { name: "IN" data_type: TYPE_FP32 dims: [ %s ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ %s ] } ]
"""
PICKY = """
if any((_in(r) == 13).any() for r in requests):
    raise ValueError("thirteen")
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", _in(r) * 2)]) for r in requests]
"""
LENGTHS = """
return [
    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.vectorize(len, otypes=[np.int32])(_in(r)))])
    for r in requests
]
"""
TEXTS = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def run(tmp_path: Path, source: str, *more: str, model: str = "double") -> int:
    places = ["--repository", str(tmp_path / "models"), "--output", str(tmp_path / "out")]
    return main([*places, "--model", model, "--input", str(tmp_path / source), *more])


def answers(tmp_path: Path) -> list[dict[str, Any]]:
    names = json.loads((tmp_path / "out" / "_manifest.json").read_text())["parts"]
    tables = [pq.read_table(tmp_path / "out" / name) for name in names]
    assert len({table.schema for table in tables}) == 1
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return rows


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    pq.write_table(pa.table(dict(columns)), path, row_group_size=7)


def test_numbers_of_parquet_in_their_order(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", config=BATCHED % (1, 1))
    write_parquet(tmp_path / "in.parquet", {"id": range(20), "IN": [float(n) for n in range(20)]})
    assert run(tmp_path, "in.parquet", "--keep", "id", "--block-rows", "5") == 0
    assert answers(tmp_path) == [{"id": n, "OUT": 2.0 * n, "error": None} for n in range(20)]
    assert len(list((tmp_path / "out").glob("part-*"))) == 6  # row groups of 7, 7 and 6


def test_lists_of_one_size_and_of_several(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", config=BATCHED % (-1, -1))
    lists = [[1.0, 2.0], [3.0], [4.0, 5.0], [6.0], [7.0, 8.0]]
    write_parquet(tmp_path / "in.parquet", {"x": lists})
    assert run(tmp_path, "in.parquet", "--map", "IN=x") == 0
    assert [row["OUT"] for row in answers(tmp_path)] == [[2 * value for value in each] for each in lists]
    assert answers(tmp_path)[4]["row"] == "in.parquet:0:4"


def test_flat_lists_have_the_shape_of_the_model(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", config=BATCHED % ("2, 2", "2, 2"))
    write_parquet(tmp_path / "in.parquet", {"IN": [[1.0, 2.0, 3.0, 4.0]] * 5})
    assert run(tmp_path, "in.parquet") == 0
    assert [row["OUT"] for row in answers(tmp_path)] == [[[2, 4], [6, 8]]] * 5


def test_several_columns_are_one_input(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", config=BATCHED % (3, 3))
    columns: dict[str, list[Any]] = {"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]}
    write_parquet(tmp_path / "in.parquet", columns)
    assert run(tmp_path, "in.parquet", "--map", "IN=c,a,b") == 0
    assert [row["OUT"] for row in answers(tmp_path)] == [[2.0, 2.0, 1.0], [0.0, 4.0, 3.0]]


def test_joined_columns_with_lists_gaps_and_too_few(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", config=BATCHED % (3, 3))
    write_parquet(tmp_path / "in.parquet", {"a": [1.0, None, 3.0], "b": [[2.0, 3.0], [4.0, 5.0], [6.0]]})
    assert run(tmp_path, "in.parquet", "--map", "IN=a,b") == 1
    first, second, third = answers(tmp_path)
    assert first["OUT"] == [2.0, 4.0, 6.0] and first["error"] is None
    assert second["error"] == "columns 'a, b' of input 'IN': there is no value in 'a'"
    assert "columns 'a, b' of input 'IN':" in third["error"] and third["OUT"] is None


def test_missing_one_of_several_columns_is_named(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(models, "double", config=BATCHED % (2, 2))
    write_parquet(tmp_path / "in.parquet", {"a": [1.0], "b": [2.0]})
    assert run(tmp_path, "in.parquet", "--map", "IN=a,z") == 2
    assert "needs a column 'z', and the columns are" in capsys.readouterr().err
    assert run(tmp_path, "in.parquet", "--map", "IN=a,,b") == 2
    assert "--map takes INPUT=COLUMN" in capsys.readouterr().err


LABELLED = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
"""


def test_best_classes_in_place_of_values(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", config=LABELLED)
    (models / "double" / "labels.txt").write_text("cat\ndog\n")
    write_parquet(tmp_path / "in.parquet", {"IN": [[0.25, 1.0, 0.5], [3.0, 0.0, 1.0]]})
    assert run(tmp_path, "in.parquet", "--classes", "2") == 0
    assert [row["OUT"] for row in answers(tmp_path)] == [
        ["2.000000:1:dog", "1.000000:2"],
        ["6.000000:0:cat", "2.000000:2"],
    ]


def test_rows_that_fail_are_kept_and_named(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", PICKY, config=BATCHED % (1, 1))
    lines = [
        '{"id": "a", "IN": 1}',
        '{"id": "b", "IN": 13}',
        "no json",
        "",
        '{"id": "c"}',
        '{"id": "d", "IN": [1, 2]}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, '{"id": "e", "IN": 5}']))
    assert run(tmp_path, "in.jsonl", "--keep", "id", "--keep", "row") == 1
    found = answers(tmp_path)
    assert [(row["id"], row["OUT"]) for row in found if row["error"] is None] == [("a", 2), ("e", 10)]
    errors = [row["error"] for row in found if row["error"]]
    assert "thirteen" in errors[0]
    assert errors[1].startswith("the line at byte 43 of in.jsonl is no JSON object: ")
    assert errors[2:] == [
        "column 'IN' of input 'IN': there is no value",
        "column 'IN' of input 'IN': the shape is [2], and the model's [1]",
    ]


def test_the_first_failure_ends_the_run_where_that_is_wanted(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(models, "double", PICKY, config=FP32)
    write_parquet(tmp_path / "in.parquet", {"IN": [[1.0], [13.0], [2.0]]})
    assert run(tmp_path, "in.parquet", "--on-error", "fail") == 1
    assert "row in.parquet:0:1: " in capsys.readouterr().err
    assert not (tmp_path / "out" / "_manifest.json").exists()


def test_a_failure_leaves_the_part_before_it_for_the_next_run(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is written while the model has the rows that fail."""
    add_model(models, "double", PICKY, config=FP32)
    write_parquet(tmp_path / "in.parquet", {"IN": [[1.0], [2.0], [13.0], [3.0], [4.0]]})
    assert run(tmp_path, "in.parquet", "--block-rows", "2", "--on-error", "fail") == 1
    parts = sorted(path.name for path in (tmp_path / "out").glob("part-*"))
    assert parts == ["part-000000.parquet"]
    assert "row in.parquet:0:2: " in capsys.readouterr().err


def test_numbers_of_models_are_not_looked_through_for_repeated_ones(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", PICKY, config=FP32)
    write_parquet(tmp_path / "in.parquet", {"IN": [[1.0], [2.0]], "id": ["a", "a"]})
    assert run(tmp_path, "in.parquet", "--keep", "id") == 0
    metadata = pq.read_metadata(tmp_path / "out" / "part-000000.parquet")
    columns = [metadata.row_group(0).column(number) for number in range(3)]
    repeated = {column.path_in_schema: column.has_dictionary_page for column in columns}
    assert repeated == {"id": True, "OUT.list.element": False, "error": True}


def test_files_and_binary_values_of_json(tmp_path: Path, models: Path) -> None:
    add_model(models, "lengths", LENGTHS, config=TEXTS)
    (tmp_path / "in").mkdir()
    for n in range(5):
        (tmp_path / "in" / f"{n}.bin").write_bytes(b"\xff" * n)
    assert run(tmp_path, "in", "--map", "IN=bytes", model="lengths") == 0
    assert [(row["row"], row["OUT"]) for row in answers(tmp_path)] == [(f"{n}.bin", n) for n in range(5)]
    (tmp_path / "out" / "_manifest.json").unlink()
    (tmp_path / "out").rename(tmp_path / "before")
    values = [{"b64": base64.b64encode(b"\xff\xfe").decode()}, "é", "abc"]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"IN": value}) for value in values))
    assert run(tmp_path, "in.jsonl", model="lengths") == 0
    assert [row["OUT"] for row in answers(tmp_path)] == [2, 2, 3]


def test_ensembles(tmp_path: Path, models: Path) -> None:
    add_model(models, "double", config=FP32)
    add_ensemble(models, "fourfold", "double", "double")
    write_parquet(tmp_path / "in.parquet", {"IN": [[1.0], [2.0, 3.0]]})
    assert run(tmp_path, "in.parquet", model="fourfold") == 0
    assert [row["OUT"] for row in answers(tmp_path)] == [[4.0], [8.0, 12.0]]


def test_a_run_that_was_cut_off_goes_on(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(models, "double", config=BATCHED % (1, 1))
    write_parquet(tmp_path / "in.parquet", {"IN": [float(n) for n in range(20)]})
    assert run(tmp_path, "in.parquet", "--block-rows", "4") == 0
    parts = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("part-*")}
    for name in ("_manifest.json", "part-000001.parquet", "part-000003.parquet"):
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / ".part-000001.parquet.unfinished").write_bytes(b"half")
    assert run(tmp_path, "in.parquet", "--block-rows", "4") == 2
    assert "has the output of a run: --resume goes on with it" in capsys.readouterr().err
    assert run(tmp_path, "in.parquet", "--block-rows", "5", "--resume") == 2
    assert "has the output of another run" in capsys.readouterr().err
    assert run(tmp_path, "in.parquet", "--block-rows", "4", "--resume", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["parts"], summary["kept_parts"], summary["rows"]) == (len(parts), len(parts) - 2, 6)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("part-*")} == parts


def test_rows_that_failed_before_a_run_was_cut_off_count(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(models, "double", PICKY, config=BATCHED % (1, 1))
    write_parquet(tmp_path / "in.parquet", {"IN": [float(n) for n in range(21)]})
    assert run(tmp_path, "in.parquet", "--block-rows", "7") == 1
    (tmp_path / "out" / "part-000002.parquet").unlink()
    assert run(tmp_path, "in.parquet", "--block-rows", "7", "--resume") == 1  # 13 is in a part that is kept
    assert ": 7 rows in " in (text := capsys.readouterr().out)
    assert text.endswith(
        "; 3 parts, of which 2 were there (14 rows, 1 failed); the column 'error' says why\n"
    )
    (tmp_path / "out" / "part-000001.parquet").unlink()
    assert run(tmp_path, "in.parquet", "--block-rows", "7", "--resume", "--json") == 1
    summary = json.loads(capsys.readouterr().out)
    assert [summary[each] for each in ("rows", "failed", "kept_rows", "kept_failed")] == [7, 1, 14, 0]


def test_a_part_that_cannot_be_read_is_named(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(models, "double", config=BATCHED % (1, 1))
    write_parquet(tmp_path / "in.parquet", {"IN": [1.0]})
    assert run(tmp_path, "in.parquet") == 0
    (tmp_path / "out" / "part-000000.parquet").write_bytes(b"broken")
    assert run(tmp_path, "in.parquet", "--resume") == 2
    assert "part-000000.parquet': " in capsys.readouterr().err


def test_models_are_loaded_once_without_their_dynamic_batching(tmp_path: Path, models: Path) -> None:
    for name in ("double", "again"):
        log = f"with open({str(tmp_path / name)!r}, 'a') as file:"
        loads = f"{log}\n    file.write(args['model_config'] + '\\n')"
        add_model(models, name, config=BATCHED % (1, 1), initialize=loads)
    add_ensemble(models, "fourfold", "double", "again")
    config = models / "fourfold" / "config.pbtxt"
    config.write_text(config.read_text() + "max_batch_size: 4\n")
    write_parquet(tmp_path / "in.parquet", {"IN": [[1.0], [2.0]]})
    assert run(tmp_path, "in.parquet", model="fourfold") == 0
    assert [row["OUT"] for row in answers(tmp_path)] == [[4.0], [8.0]]
    for name in ("double", "again"):
        (loaded,) = (tmp_path / name).read_text().splitlines()
        assert "dynamic_batching" not in json.loads(loaded)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            ["--map", "IN=z"],
            "input 'IN' needs a column 'z', and the columns are IN, row: --map IN=COLUMN names",
        ),
        (["--map", "X=IN"], "model 'double' has no input 'X': its inputs are IN"),
        (["--outputs", "X"], "model 'double' has no output 'X': its outputs are OUT"),
        (["--keep", "z"], "there is no column 'z' to keep: IN, row"),
        (["--batch-size", "5"], "model 'double' takes 4 rows at once"),
        (["--format", "files", "--input", "nowhere"], "there is no file at 'nowhere'"),
        (["--model", "xyz"], "models: It has: 'double', 'words'"),
        (["--model", "duble"], "there is no model 'duble' in"),
        (["--model", "duble"], "did you mean 'double'? It has: 'double', 'words'"),
        (["--model", "words"], "model 'words' has any number of responses to a row"),
    ],
)
def test_what_cannot_be_run_is_said(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str], more: list[str], text: str
) -> None:
    add_model(models, "double", config=BATCHED % (1, 1))
    add_model(models, "words", config=FP32 + DECOUPLED)
    write_parquet(tmp_path / "in.parquet", {"IN": [1.0]})
    assert run(tmp_path, "in.parquet", *more) == 2
    assert text in capsys.readouterr().err
    assert run(tmp_path, "in.parquet") == 0, "the directory is free for the command without the mistake"


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(models, "double", config=BATCHED % (1, 1))
    write_parquet(tmp_path / "in.parquet", {"IN": [float(n) for n in range(20)]})
    written = Output.write

    def write(output: Output, block: Block, table: pa.Table) -> None:
        if block.number:
            raise KeyboardInterrupt
        written(output, block, table)

    with monkeypatch.context() as patched:
        patched.setattr(Output, "write", write)
        assert run(tmp_path, "in.parquet", "--block-rows", "4") == 130
    assert capsys.readouterr().err.endswith("stopped: --resume goes on with it\n")
    assert run(tmp_path, "in.parquet", "--block-rows", "4") == 2
    assert run(tmp_path, "in.parquet", "--block-rows", "4", "--resume") == 0
    assert len(answers(tmp_path)) == 20


SHAPES = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(st.lists(st.none() | SHAPES))
def test_lists_of_lists_return(shapes: list[tuple[int, int] | None]) -> None:
    rows = [
        None if shape is None else np.arange(np.prod(shape)).reshape(shape).astype(np.int32)
        for shape in shapes
    ]
    column = output_column(rows, "INT32", [-1, -1])
    assert column.to_pylist() == [None if row is None else row.tolist() for row in rows]
    assert column.type == pa.list_(pa.list_(pa.int32()))


def test_columns_of_every_datatype() -> None:
    texts = output_column([np.array([b"\xff"], np.object_), None], "BYTES", [1])
    assert (texts.to_pylist(), texts.type) == ([b"\xff", None], pa.binary())
    rounded = output_column([np.array([0x3F80], np.uint16)], "BF16", [1])
    assert (rounded.to_pylist(), rounded.type) == ([1.0], pa.float32())
    assert output_column([None], "FP16", [1]).type == pa.float16()
    assert output_column([np.array([True])], "BOOL", [1]).to_pylist() == [True]
