"""`nereid batch` of tapes that are made here, with real models in this process."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid.commands.tape.command import main as tape_command
from nereid.offline.blocks import InputError, blocks, open_source
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from nereid_client.tape.segments import cut, seal
from tests.unit.client.tape.made import row, write
from tests.unit.nereid.engine.repositories import FP32, add_model
from tests.unit.nereid.offline.test_batch import BATCHED, LENGTHS, TEXTS, answers, run

SUMS = """
one, two = (pb_utils.get_input_tensor_by_name(r, n) for r in requests for n in ("IN", "MORE"))
more = np.zeros_like(one.as_numpy()) if two is None else two.as_numpy()
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.as_numpy() + more)])]
"""
OPTIONAL = """
input [
  { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "MORE" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def tensor(values: Any, name: str = "IN", datatype: str = "FP32") -> TapeTensor:
    array = np.asarray(values, "<f4")
    return TapeTensor(name, datatype, array.shape, array.tobytes(), array.nbytes)


def request(number: int, *inputs: TapeTensor, model: str = "double", **changed: Any) -> Row:
    answer = TapeResponse(1000, (tensor(2 * inputs[0].array(), "OUT"),), final=True)
    fields: dict[str, Any] = {"responses": (answer,), **changed}
    return row(number, 100.0 + number, inputs=inputs, model=model, **fields)


def recorded(tmp_path: Path, *segments: Sequence[Row]) -> None:
    for number, rows in enumerate(segments):
        write(tmp_path / f"tape/node/ab-00000{number}.open", rows)


def test_rows_of_batches_are_rows_and_get_the_answers_that_were_recorded(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=BATCHED % (2, 2))
    other = request(2, tensor([[9]]), model="other")
    one = [request(1, tensor([[1, 2], [3, 4], [5, 6]])), other, request(3, tensor([[7, 8]]))]
    recorded(tmp_path, one, [request(4, tensor([[9, 10]]))])
    (tmp_path / "tape/key").write_bytes(b"secret")
    assert run(tmp_path, "tape", "--keep", "row", "--keep", "key", "--keep", "out.OUT") == 0
    found = answers(tmp_path)
    assert [each["row"] for each in found] == ["ab-1:0", "ab-1:1", "ab-1:2", "ab-3:0", "ab-4:0"]
    assert [each["key"] for each in found] == ["ab-1"] * 3 + ["ab-3", "ab-4"]
    assert [each["OUT"] for each in found] == [[2, 4], [6, 8], [10, 12], [14, 16], [18, 20]]
    assert all(each["OUT"] == each["out.OUT"] for each in found)


def test_requests_of_models_without_batches_keep_their_shapes(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=FP32.replace("[ -1 ]", "[ -1, -1 ]"))
    recorded(tmp_path, [request(1, tensor([[1, 2], [3, 4]])), request(2, tensor([[5], [6], [7]]))])
    assert run(tmp_path, "tape") == 0
    first, second = answers(tmp_path)
    assert first == {"row": "ab-1", "OUT": [[2, 4], [6, 8]], "error": None}
    assert second["OUT"] == [[10], [12], [14]]


def test_texts_that_were_kept_are_read(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", LENGTHS, config=TEXTS)
    data = b"".join(len(each).to_bytes(4, "little") + each for each in (b"a", b"four"))
    texts = TapeTensor("IN", "BYTES", (2, 1), data, len(data))
    recorded(tmp_path, [row(1, inputs=(texts,), model="double", responses=())])
    assert run(tmp_path, "tape") == 0
    assert [each["OUT"] for each in answers(tmp_path)] == [1, 4]


def test_rows_that_cannot_be_sent_again_say_why(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=BATCHED % (1, 1))
    gone = TapeTensor("IN", "FP32", (2, 1), b"", 8, "size")
    rows = [
        row(1, inputs=(gone,), model="double", responses=()),
        request(2, tensor([[1]]), flags=("no-replay",)),
        request(3, tensor([[2]])),
    ]
    recorded(tmp_path, rows)
    assert run(tmp_path, "tape", "--keep", "key", "--keep", "out.OUT") == 1
    found = answers(tmp_path)
    assert [each["key"] for each in found] == ["ab-1", "ab-1", "ab-2", "ab-3"]
    assert [each["OUT"] for each in found] == [None, None, None, 4]
    assert [each["error"] for each in found[:3]] == [
        "input 'IN' was not kept (size)",
        "input 'IN' was not kept (size)",
        "the model's tape.yaml says `replay: never`",
    ]


def test_damaged_row_says_so_and_others_are_answered(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=BATCHED % (1, 1))
    recorded(tmp_path, [request(1, tensor([[1]])), request(2, tensor([[77]])), request(3, tensor([[3]]))])
    path = tmp_path / "tape/node/ab-000000.open"
    path.write_bytes(path.read_bytes().replace(np.float32(77).tobytes(), b"\0\0\0\0"))
    assert run(tmp_path, "tape") == 1
    first, second, third = answers(tmp_path)
    assert (first["OUT"], second["OUT"], third["OUT"]) == (2, None, 6)
    assert "is damaged at byte" in second["error"]


def test_rows_that_a_segment_has_lost_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_model(tmp_path / "models", "double", config=BATCHED % (1, 1))
    recorded(tmp_path, [request(1, tensor([[1]])), request(2, tensor([[2]]))])
    opened = tmp_path / "tape/node/ab-000000.open"
    last = opened.read_bytes().rindex(b"REC1")
    path = seal(opened, cut(opened))
    sealed = bytearray(path.read_bytes())
    sealed[last + 20] ^= 1  # in the frame of the last row
    path.write_bytes(sealed)
    assert run(tmp_path, "tape") == 0
    assert [each["OUT"] for each in answers(tmp_path)] == [2]
    assert f"{path}: 1 row is damaged or missing" in capsys.readouterr().err


def test_requests_that_were_refused_do_not_spoil_a_tape(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=BATCHED % (1, 1))
    refused = (TapeResponse(1000, code="INVALID_ARG", error="no", final=True),)
    double = TapeTensor("IN", "FP64", (1, 1), bytes(8), 8)
    endless = TapeTensor("IN", "FP32", (1 << 40, 0))
    rows = [
        request(1, tensor([[1]])),
        row(2, inputs=(double,), model="double", responses=refused),
        row(3, inputs=(endless,), model="double", responses=refused),
        row(4, inputs=(tensor([[4]], "OTHER"),), model="double", responses=refused),
    ]
    recorded(tmp_path, rows)
    assert run(tmp_path, "tape", "--keep", "key") == 1
    found = answers(tmp_path)
    assert [(each["key"], each["OUT"]) for each in found] == [
        ("ab-1", 2),
        ("ab-2", None),
        ("ab-3", None),
        ("ab-4", None),
    ]
    assert found[1]["error"] == "'IN' is FP64, unlike that of answered requests"


def test_requests_that_have_failed_are_sent_again_with_all_of_their_inputs(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", SUMS, config=OPTIONAL)
    failed = (TapeResponse(1000, code="INTERNAL", error="no", final=True),)
    both = request(2, tensor([1, 2]), tensor([10, 20], "MORE"), responses=failed)
    recorded(tmp_path, [request(1, tensor([1, 2])), both])
    assert run(tmp_path, "tape") == 0
    assert [each["OUT"] for each in answers(tmp_path)] == [[1, 2], [11, 22]]


def test_optional_inputs_are_given_where_they_were(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", SUMS, config=OPTIONAL)
    both = request(2, tensor([1, 2]), tensor([10, 20], "MORE"))
    recorded(tmp_path, [request(1, tensor([1, 2])), both, request(3, tensor([3]))])
    assert run(tmp_path, "tape") == 0
    assert [each["OUT"] for each in answers(tmp_path)] == [[1, 2], [11, 22], [3]]


def test_exported_rows_need_no_names_of_columns(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=FP32.replace("[ -1 ]", "[ -1, -1 ]"))
    recorded(tmp_path, [request(1, tensor([[1, 2], [3, 4]])), request(2, tensor([[5], [6], [7]]))])
    assert tape_command(["export", str(tmp_path / "tape"), str(tmp_path / "rows.parquet")]) == 0
    assert run(tmp_path, "rows.parquet", "--keep", "key") == 0
    assert [each["OUT"] for each in answers(tmp_path)] == [[[2, 4], [6, 8]], [[10], [12], [14]]]


def test_blocks_have_so_many_rows_and_bytes(tmp_path: Path) -> None:
    sizes = [3, 1, 5, 1, 1, 1]
    recorded(tmp_path, [request(at, tensor(np.ones((size, 2)))) for at, size in enumerate(sizes)])
    source = open_source(str(tmp_path / "tape"), model="double")
    assert len(blocks(source, 4)) == 3  # of 4, 5 and 3 rows
    assert len(blocks(source, 100)) == 1
    recorded(tmp_path, [request(at, tensor(np.ones((1, 3 << 20)))) for at in range(3)])
    assert len(blocks(source._replace(model="double"), 100)) == 1  # what is read of a segment is read once
    again = tmp_path / "tape/node/cd-000000.open"
    (tmp_path / "tape/node/ab-000000.open").rename(again)
    assert len(blocks(open_source(str(again), model="double"), 100)) == 3  # of 24 MiB each


def test_run_goes_on_and_not_with_a_tape_that_has_grown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_model(tmp_path / "models", "double", config=BATCHED % (1, 1))
    recorded(tmp_path, [request(at, tensor([[at]])) for at in range(4)])
    assert run(tmp_path, "tape", "--block-rows", "2") == 0
    (tmp_path / "out/part-000001.parquet").unlink()
    (tmp_path / "out/_manifest.json").unlink()
    assert run(tmp_path, "tape", "--block-rows", "2", "--resume", "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["rows"], told["kept_rows"]) == (2, 2)
    (tmp_path / "tape/node/ab-000000.open").rename(tmp_path / "tape/node/ab-000000.gone")
    write(tmp_path / "tape/node/ab-000009.open", [request(at, tensor([[at]])) for at in range(5)])
    assert run(tmp_path, "tape", "--block-rows", "2", "--resume") == 2
    assert "has the output of another run" in capsys.readouterr().err


def test_what_is_no_tape_of_the_model_is_told(tmp_path: Path) -> None:
    recorded(tmp_path, [request(1, tensor([[1]]), model="other")])
    with pytest.raises(InputError, match="has no row of model 'double'"):
        open_source(str(tmp_path / "tape"), model="double")
    both = [request(1, tensor([[1]])), request(2, tensor([[1]], datatype="INT32"))]
    write(tmp_path / "two/node/ab-000001.open", both)
    with pytest.raises(InputError, match=r"'in\.IN' is FP32 and, in row ab-2 of model 'double', INT32"):
        open_source(str(tmp_path / "two"), model="double")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.tape").write_text("no tape at all")
    with pytest.raises(InputError, match="is no file of a tape"):
        open_source(str(tmp_path / "bad"), model="double")
