"""Where the adapters of a model are."""

import json
from pathlib import Path
from typing import Any

import pytest

from backends.packaged.llm.adapters import read_adapters


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A version's directory with an adapter."""
    for folder in (tmp_path / "m" / "1" / "red", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_bytes(b"")
    return tmp_path / "m" / "1"


def test_folders_by_name(directory: Path) -> None:
    assert read_adapters(str(directory)) == {}
    (directory / "multi_lora.json").write_text('{"doll": "red"}')
    assert read_adapters(str(directory)) == {"doll": str(directory / "red")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["red"], "must be a JSON object of names and folders"),
        ({"doll": 1}, "must be a JSON object of names and folders"),
        ({"": "red"}, "must be a JSON object of names and folders"),
        ({"doll": "blue"}, "adapter 'doll' of .* has no adapter_model.safetensors in"),
        ({"doll": "../../elsewhere"}, "adapter 'doll' of .* leads out of"),
    ],
)
def test_adapters_that_are_refused(directory: Path, given: Any, message: str) -> None:
    (directory / "multi_lora.json").write_text(json.dumps(given))
    with pytest.raises(ValueError, match=message):
        read_adapters(str(directory))
