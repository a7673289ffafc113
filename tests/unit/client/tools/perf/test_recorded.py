"""Inputs and pauses of a tape."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid_client import Signature, TensorSpec
from nereid_client.tape.rows import Row, TapeTensor
from nereid_client.tools.perf.inputs import read_inputs
from nereid_client.tools.perf.options import Address, Options, PerfError
from nereid_client.tools.perf.recorded import is_tape, pauses
from tests.unit.client.tape.made import row, tensor, write

TAKES = Signature({"IN": TensorSpec("IN", "FP32", (-1, -1))}, {}, batched=True)


def recorded(number: int, rows: int = 1, at_s: float = 0.0, **changed: Any) -> Row:
    data = np.full((rows, 2), number, "<f4").tobytes()
    inputs = (TapeTensor("IN", "FP32", (rows, 2), data, len(data)),)
    return row(number, at_s or 100.0 + number, **{"inputs": inputs, **changed})


def options(path: Path, **fields: Any) -> Options:
    return Options("simple", Address("http", "localhost", 1), data=str(path), **fields)


def test_rows_have_the_shapes_that_they_had(tmp_path: Path) -> None:
    rows = [recorded(1), recorded(2, 3), recorded(3, model="other"), recorded(4, flags=("no-replay",))]
    path = write(tmp_path / "node" / "a.tape", rows)
    for given in (path, tmp_path):
        found = read_inputs(options(given), TAKES)
        assert [[step["IN"].tolist() for step in each] for each in found] == [[[[1, 1]]], [[[2, 2]] * 3]]
    (first,), (second,) = read_inputs(options(path, batch=4), TAKES)
    assert first["IN"].tolist() == [[1, 1]] * 4 and second["IN"].tolist() == [[2, 2]] * 4
    assert [len(each["IN"]) for (each,) in read_inputs(options(path, cut=True), TAKES)] == [1, 1]


def test_sequences_are_whole(tmp_path: Path) -> None:
    rows = [
        recorded(1, sequence_id=7),  # begun before
        recorded(2, sequence_id=8, sequence_start=True),
        recorded(3, sequence_id=9, sequence_start=True),
        recorded(4, sequence_id=8, sequence_end=True),
    ]
    write(tmp_path / "a.tape", rows)
    found = read_inputs(options(tmp_path), TAKES)
    assert [[step["IN"][0, 0] for step in each] for each in found] == [[2, 4], [3]]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"model": "other"}, "has no whole row of model 'simple'"),
        ({"inputs": (tensor("IN", b"", state="size"),)}, "has no whole row"),
        (
            {"inputs": (tensor("IN", datatype="INT32"),)},
            "row ab-1 has the input IN INT32[1], the model takes",
        ),
        ({"inputs": (tensor("X"),)}, "row ab-1 has the input X"),
        ({"inputs": (tensor("IN", shape=(3, 1 << 50)),)}, "the bytes of 'IN' are no FP32"),
    ],
)
def test_rows_that_do_not_fit(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    write(tmp_path / "a.tape", [recorded(1, **changed)])
    with pytest.raises(PerfError) as raised:
        read_inputs(options(tmp_path), TAKES)
    assert text in str(raised.value)


def test_a_model_without_batches_takes_none(tmp_path: Path) -> None:
    write(tmp_path / "a.tape", [recorded(1)])
    with pytest.raises(PerfError, match="takes no batches"):
        read_inputs(options(tmp_path, batch=2), Signature(TAKES.inputs, {}))


def test_pauses_are_those_between_rows_of_the_model(tmp_path: Path) -> None:
    moments = (100.0, 100.5, 101.5, 101.5, 104.0)
    rows = [recorded(number, at_s=at) for number, at in enumerate(moments)]
    write(tmp_path / "a.tape", [*rows, recorded(9, at_s=100.2, model="other")])
    assert (pauses(tmp_path, "simple") / 1e9).tolist() == [0.75, 0.5, 1.0, 0.0, 2.5]
    with pytest.raises(ValueError, match="no two rows of model 'other'"):
        pauses(tmp_path, "other")
    (tmp_path / "pauses").write_text("10\n20\n")
    assert pauses(tmp_path / "pauses", "simple").tolist() == [10_000, 20_000]


def test_a_directory_of_inputs_is_no_tape(tmp_path: Path) -> None:
    (tmp_path / "IN").write_bytes(b"")
    assert not is_tape(tmp_path) and not is_tape(tmp_path / "IN") and not is_tape(Path("none"))
    assert is_tape(Path("a.open"))
