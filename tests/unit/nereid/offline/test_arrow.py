"""Arrays of Arrow without pandas."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.offline import arrow
from nereid.offline.arrow import numbers, texts
from tests.server import ROOT


@pytest.mark.parametrize("kind", ["bool", "int8", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 9, 64])
def test_numbers_are_those_of_pyarrow(kind: str, size: int) -> None:
    values = (np.arange(2 * size) % 3).astype(kind)[::2]  # not contiguous
    missing = np.arange(size) % 4 == 1
    for each in (None, missing):
        found = numbers(values, each)
        found.validate(full=True)
        assert found.equals(pa.array(values, mask=each))


@given(st.lists(st.one_of(st.none(), st.text()), max_size=20))
def test_texts_are_those_of_pyarrow(values: list[Any]) -> None:
    for kind in (pa.string(), pa.large_string()):
        found = texts(values, kind)
        found.validate(full=True)
        assert found.equals(pa.array(values, kind))


@given(st.lists(st.one_of(st.none(), st.binary()), max_size=20))
def test_bytes_are_those_of_pyarrow(values: list[Any]) -> None:
    for kind in (pa.binary(), pa.large_binary()):
        found = texts(values, kind)
        found.validate(full=True)
        assert found.equals(pa.array(values, kind))


def test_what_is_too_large_is_left_to_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_LARGEST", 3)
    assert texts(["abcd", None], pa.string()).to_pylist() == ["abcd", None]


def test_batch_of_parquet_imports_no_pandas(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np, pyarrow.parquet as pq
from nereid.offline.arrow import numbers
import pyarrow as pa
pq.write_table(pa.table({{"INPUT": numbers(np.ones(8, np.float32))}}), {str(tmp_path / "in.parquet")!r})
from nereid.offline.command import main
from nereid.commands.new.command import main as new
assert new(["m", "--python", "--repository", {str(tmp_path / "r")!r}]) == 0
words = ["--repository", {str(tmp_path / "r")!r}, "--model", "m", "--input", {str(tmp_path / "in.parquet")!r}]
assert main([*words, "--output", {str(tmp_path / "out")!r}]) == 0
assert "pandas" not in sys.modules, "it takes half a second"
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT}/client"}
    )
