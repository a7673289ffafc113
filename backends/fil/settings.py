"""Parameters of a model of the backend fil, with the names, defaults and texts of Triton's.

Source: `RapidsSharedState::load` in Triton's fil_backend (src/shared_state.h).
"""

import logging
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from app.core.errors import invalid_arg
from backends.base import Model

logger = logging.getLogger(__name__)

Value = TypeVar("Value", int, float)

_REPLACED: Final = {"algo": "layout", "threads_per_tree": "chunk_size", "output_class": "is_classifier"}
_REMOVED: Final = ("storage_type", "blocks_per_sm")
_FOR_GPUS: Final = ("layout", "chunk_size", "transfer_threshold")


class Settings(NamedTuple):
    """What the parameters say.

    Attributes:
        is_classifier: None where they do not say it: the model knows.
        predict_proba: answer by probabilities rather than by a class.
        threshold: above which probability a row is of a binary classifier's class 1.
        allow_unknown_field: in XGBoost's JSON.
        threads: for large batches; 0 for a share of the CPUs.
    """

    is_classifier: bool | None
    predict_proba: bool
    threshold: float
    allow_unknown_field: bool
    threads: int


def read_settings(model: Model) -> Settings:
    """Read the parameters of a model.

    Raises:
        InferError: INVALID_ARG for a value that is none.
    """
    settings = Settings(
        is_classifier=_is_classifier(model),
        predict_proba=_boolean(model, "predict_proba") or False,
        threshold=_number(model, "threshold", float, 0.5),
        allow_unknown_field=_boolean(model, "xgboost_allow_unknown_field") or False,
        threads=max(0, _number(model, "cpu_nthread", int, 0)),
    )
    for key in ("chunk_size", "transfer_threshold"):
        _number(model, key, int, 0)
    return settings


def warn_of_parameters(model: Model) -> None:
    """Log a line for each parameter without effect."""
    for key, new in _REPLACED.items():
        if model.parameter(key):
            logger.warning(
                "model '%s': The `%s` parameter has been removed in 25.09 release. Use `%s` instead.",
                model.name,
                key,
                new,
            )
    for key in _REMOVED:
        if model.parameter(key):
            logger.warning(
                "model '%s': The `%s` parameter has been removed in 25.09 release.", model.name, key
            )
    for key in _FOR_GPUS:
        if model.parameter(key):
            logger.warning(
                "model '%s': parameter '%s' is for GPUs; trees run on the CPU here", model.name, key
            )


def _is_classifier(model: Model) -> bool | None:
    old = {"true": True, "false": False}.get(model.parameter("output_class"))
    return _boolean(model, "is_classifier") if old is None else old


def _boolean(model: Model, key: str) -> bool | None:
    if key not in model.config.parameters:
        return None
    value = model.parameter(key)
    if value not in ("true", "false"):
        raise invalid_arg(f"Expected 'true' or 'false' for parameter '{key}', got: '{value}'")
    return value == "true"


def _number(model: Model, key: str, kind: Callable[[str], Value], default: Value) -> Value:
    if key not in model.config.parameters:
        return default
    try:
        return kind(model.parameter(key))
    except ValueError:
        raise invalid_arg(f"Bad input for parameter {key}") from None
