"""Files of YAML beside a model's versions that say how its server treats it."""

from pathlib import Path
from typing import Any

import yaml

from app.core.config.text import MAX_CONFIG_BYTES
from app.core.errors import invalid_arg
from app.core.tape.spec import TapeSpec, parse_spec
from deployments.model_store.layout import TAPE_FILE, ModelEntry
from deployments.model_store.model_files import read_text


def read_policy_file(entry: ModelEntry, path: Path) -> str | None:
    """Read a file of a model; None if there is none.

    Raises:
        InferError: INTERNAL with the reason.
    """
    return read_text(entry, path, MAX_CONFIG_BYTES) if path.exists() else None


def parse_yaml(text: str, source: str) -> Any:
    """Return what a YAML document says.

    Raises:
        InferError: INVALID_ARG with source and reason.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise invalid_arg(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def read_tape_spec(entry: ModelEntry) -> TapeSpec | None:
    """Read what of a model's requests is recorded: its `tape.yaml`; None without one.

    Raises:
        InferError: INVALID_ARG or INTERNAL with the reason.
    """
    path = entry.directory / TAPE_FILE
    text = read_policy_file(entry, path)
    return None if text is None else parse_spec(parse_yaml(text, str(path)), str(path))
