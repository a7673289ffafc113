"""The file formats of the backend fil: `model_type` of a configuration, and the name of its file.

Source: `string_to_serialization` and `model_file` in Triton's fil_backend (src/serialization.h, src/model.h).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from app.core.errors import unsupported

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as mc

FILES: Final = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
"""`model_type`: the file that Triton loads, if `default_model_filename` names no other."""

_BEGINNINGS: Final = {
    "lightgbm": re.compile(rb"tree\r?\nversion="),
    "xgboost_json": re.compile(rb'\s*\{\s*"'),
    "xgboost_ubj": re.compile(rb"\{(L\0{7}|[iU])"),
    # Three int32 (version 3.9 or 4.x of treelite), then the types of thresholds and leaves.
    "treelite_checkpoint": re.compile(rb"[\x03\x04]\0\0\0.\0\0\0.\0\0\0[\x02\x03][\x01-\x03]", re.DOTALL),
    "xgboost": re.compile(rb".{100,250}gbtree|.{100,250}dart|binf", re.DOTALL),
}


def model_type(config: mc.ModelConfig, names: Collection[str]) -> str:
    """Return the format of a model's file.

    Without the parameter `model_type` it follows from the file: its name in the configuration, else the only
    name in the version directory that stands for a format. Triton's default is "xgboost".

    Raises:
        InferError: UNSUPPORTED for an unknown `model_type`.
    """
    if "model_type" in config.parameters:
        chosen: str = config.parameters["model_type"].string_value
        if chosen not in FILES:
            raise unsupported(f"{chosen} not recognized as a valid serialization format.")
        return chosen
    named = _named(config, names)
    wanted = [named] if named else names
    found = [kind for kind, file in FILES.items() if file in wanted]
    return found[0] if len(found) == 1 else "xgboost"


def file_name(config: mc.ModelConfig, names: Collection[str]) -> str:
    """Return the name of a model's file in its version directory."""
    return _named(config, names) or FILES[model_type(config, names)]


def _named(config: mc.ModelConfig, names: Collection[str]) -> str:
    """Return the file that the configuration names; "" also for model.fil, which a model's name implies."""
    named: str = config.default_model_filename
    return named if named != "model.fil" or named in names else ""


def seems(head: bytes) -> str:
    """Return the `model_type` of a file by its first bytes; "" if it is of none."""
    return next((kind for kind, pattern in _BEGINNINGS.items() if pattern.match(head)), "")
