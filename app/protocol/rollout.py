"""Rollouts as both APIs carry them: the request to change one, and the answer."""

from collections.abc import Mapping
from typing import Any

import msgspec

from app.core.errors import invalid_arg
from app.core.rollout.history import RolloutHistory
from app.core.rollout.report import figures
from app.core.rollout.status import ROLLOUT_ACTIONS, RolloutChange, RolloutStatus


def parse_change(fields: Any) -> RolloutChange:
    """Read a request to change a rollout.

    Raises:
        InferError: INVALID_ARG with the field and what is wrong with it.
    """
    try:
        return msgspec.convert(fields, RolloutChange)
    except msgspec.ValidationError as error:
        actions = ", ".join(ROLLOUT_ACTIONS)
        raise invalid_arg(f"invalid rollout request: {error}; actions are {actions}") from None


def status_fields(status: RolloutStatus) -> dict[str, Any]:
    """Return what both APIs say of a rollout: its status, and the `figures` of all of its requests."""
    fields: dict[str, Any] = _plain(status)
    return {**fields, "figures": _plain(figures(status.total))}


def history_fields(history: RolloutHistory) -> dict[str, Any]:
    """Return what both APIs say of what a model has served."""
    fields: dict[str, Any] = _plain(history)
    return fields


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, with the fields that have their defaults too."""
    if isinstance(value, msgspec.Struct):
        return {name: _plain(field) for name, field in msgspec.structs.asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(field) for key, field in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return msgspec.to_builtins(value)
