"""What a search has found so far, kept in a file, by which one that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic

from nereid_client.tools.analyze.trials import C, Measured
from nereid_client.tools.perf.options import PerfError


@dataclass
class State(Generic[C]):
    """What is known so far; it is kept in a file, by which a search that was interrupted goes on."""

    path: Path
    key: Mapping[str, Any]
    predicted: dict[C, float]
    measured: dict[C, Measured]
    rates: dict[C, list[float]] = field(default_factory=dict)
    doubts: dict[C, str] = field(default_factory=dict)

    def save(self) -> None:
        """Write the file."""
        found: dict[str, Mapping[C, Any]] = {
            "predicted": self.predicted,
            "measured": self.measured,
            "rates": self.rates,
            "doubts": self.doubts,
        }
        content = {"key": self.key, **{name: listed(values) for name, values in found.items()}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(content, indent=1, default=asdict) + "\n")
        except OSError as error:
            raise PerfError(f"cannot write {self.path}: {error.strerror}") from None


def listed(values: Mapping[Any, Any]) -> list[list[Any]]:
    """Return a mapping by configurations as JSON has it."""
    return [[list(candidate), value] for candidate, value in values.items()]


def resumed(path: Path, key: Mapping[str, Any], made_of: Callable[..., C]) -> State[C]:
    """Return what an earlier search of the same kind has found; nothing if there was none.

    Args:
        path: its file.
        key: what it was about.
        made_of: makes a configuration of its fields.
    """
    try:
        content = json.loads(path.read_text())
        if content["key"] == json.loads(json.dumps(key)):
            predicted = {made_of(*fields): rate for fields, rate in content["predicted"]}
            measured = {made_of(*fields): Measured(**found) for fields, found in content["measured"]}
            rates = {made_of(*fields): found for fields, found in content["rates"]}
            doubts = {made_of(*fields): found for fields, found in content["doubts"]}
            return State(path, key, predicted, measured, rates, doubts)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return State(path, key, {}, {})
