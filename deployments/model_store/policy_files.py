"""Files of YAML beside a model's versions that say how its server treats it."""

import re
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from app.core.config.text import MAX_CONFIG_BYTES
from app.core.errors import invalid_arg
from app.core.tape.spec import TapeSpec, parse_spec
from deployments.model_store.layout import TAPE_FILE, ModelEntry
from deployments.model_store.model_files import read_text

T = TypeVar("T")
_PLACE: Final = re.compile(r"(?P<why>.*) - at `\$\.?(?P<field>[^`]*)`", re.DOTALL)


def read_policy_file(path: Path) -> str | None:
    """Read a file of a model; None if there is none.

    Raises:
        InferError: INTERNAL with the reason.
    """
    return read_text(path, MAX_CONFIG_BYTES) if path.exists() else None


def parse_yaml(text: str, source: str) -> Any:
    """Return what a YAML document says.

    Raises:
        InferError: INVALID_ARG with source and reason.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise invalid_arg(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def converted(fields: Any, kind: type[T], source: str) -> T:
    """Return what a document says as a struct; nothing is one with defaults.

    Raises:
        InferError: INVALID_ARG with source, field and reason.
    """
    try:
        return msgspec.convert({} if fields is None else fields, kind)
    except msgspec.ValidationError as error:
        place = _PLACE.fullmatch(str(error))
        field, why = (place["field"], place["why"]) if place else ("", str(error))
        raise invalid_arg(": ".join(filter(None, (source, field, why)))) from None


def read_tape_spec(entry: ModelEntry) -> TapeSpec | None:
    """Read what of a model's requests is recorded: its `tape.yaml`; None without one.

    Raises:
        InferError: INVALID_ARG or INTERNAL with the reason.
    """
    path = entry.directory / TAPE_FILE
    text = read_policy_file(path)
    return None if text is None else parse_spec(parse_yaml(text, str(path)), str(path))
