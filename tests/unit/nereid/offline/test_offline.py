"""The stage of `nereid batch --actors`, in this process."""

from pathlib import Path
from typing import Any

import pytest

from nereid import offline
from nereid.offline import ActorsError, Parts, told, write_parts
from nereid.offline.blocks import InputError, blocks, open_source
from nereid.offline.execution import Job, RowError
from tests.unit.nereid.engine.repositories import FP32, add_model

PICKY = "raise ValueError('thirteen')"


def written(tmp_path: Path, **fields: Any) -> dict[str, int]:
    """Have an actor write the part of the first block."""
    (tmp_path / "in.jsonl").write_text('{"IN": [1.0]}\n')
    job = Job((str(tmp_path / "models"),), fields.pop("model", "double"), **fields)
    source = open_source(str(tmp_path / "in.jsonl"), "")
    parts = Parts(job._asdict(), source.url, source.format, str(tmp_path / "out"))
    try:
        return told(parts({"block": list(blocks(source, 10)[0])}))
    finally:
        if not parts._fault:
            parts._worker.close()  # an actor unloads its model by its end


def test_what_is_wrong_with_the_command_comes_back_as_a_sentence(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=FP32)
    add_model(tmp_path / "models", "picky", PICKY, config=FP32)
    with pytest.raises(InputError, match=r"there is no model 'absent' in .*It has: 'double', 'picky'$"):
        written(tmp_path, model="absent")
    with pytest.raises(InputError, match="has no output 'X': its outputs are OUT"):
        written(tmp_path, outputs=("X",))
    with pytest.raises(InputError, match="there is no column 'z' to keep"):
        written(tmp_path, keep=("z",))
    with pytest.raises(RowError, match="thirteen"):
        written(tmp_path, model="picky", fail=True)


def test_block_that_is_written_is_counted(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=FP32)
    assert written(tmp_path) == {"number": 0, "rows": 1, "failed": 0}
    assert (tmp_path / "out" / "part-000000.parquet").is_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Timed out while starting actors.\nThis may mean ...", "Timed out while starting actors"),
        ("ray::Map()\n  File 'x.py'\nValueError: it is full", "ValueError: it is full"),
        ("", "RuntimeError"),
    ],
)
def test_a_failure_of_ray_is_a_sentence(monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError(text)
        yield

    monkeypatch.setattr(offline, "_answers", fails)
    with pytest.raises(ActorsError) as caught:
        list(write_parts({}, ("", "", ""), [], 2, 0))
    assert str(caught.value).startswith(f"Ray's actors did not finish it: {said}. --resume goes on")
