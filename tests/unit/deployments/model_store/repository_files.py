"""A repository whose files a test writes."""

from pathlib import Path

import pytest

from app.core.errors import InferError
from deployments.model_store.layout import ModelEntry, scan
from deployments.model_store.model_files import read_config


def add(repository: Path, name: str, files: dict[str, str]) -> Path:
    for file, text in files.items():
        path = repository / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return repository / name


def entry_of(repository: Path, name: str = "m") -> ModelEntry:
    return scan({repository: ""})[name]


def refusal(entry: ModelEntry, config_name: str = "", auto_complete: bool = True) -> InferError:
    with pytest.raises(InferError) as caught:
        read_config(entry, config_name, auto_complete)
    return caught.value
