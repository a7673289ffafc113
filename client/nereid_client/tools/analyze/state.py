"""What a search has found so far, kept in a file, by which one that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nereid_client.tools.analyze.space import Candidate
from nereid_client.tools.analyze.trials import Measured
from nereid_client.tools.perf.options import PerfError


@dataclass
class State:
    """What is known so far; it is kept in a file, by which a search that was interrupted goes on."""

    path: Path
    key: Mapping[str, Any]
    predicted: dict[Candidate, float]
    measured: dict[Candidate, Measured]
    rates: dict[Candidate, list[float]] = field(default_factory=dict)
    doubts: dict[Candidate, str] = field(default_factory=dict)

    def save(self) -> None:
        """Write the file."""
        found: dict[str, Mapping[Candidate, Any]] = {
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


def listed(values: Mapping[Candidate, Any]) -> list[list[Any]]:
    """Return a mapping by candidates as JSON has it."""
    return [[list(candidate), value] for candidate, value in values.items()]


def resumed(path: Path, key: Mapping[str, Any]) -> State:
    """Return what an earlier search of the same kind has found; nothing if there was none."""
    try:
        content = json.loads(path.read_text())
        if content["key"] == json.loads(json.dumps(key)):
            predicted = {Candidate(*fields): rate for fields, rate in content["predicted"]}
            measured = {Candidate(*fields): Measured(**found) for fields, found in content["measured"]}
            rates = {Candidate(*fields): found for fields, found in content["rates"]}
            doubts = {Candidate(*fields): found for fields, found in content["doubts"]}
            return State(path, key, predicted, measured, rates, doubts)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return State(path, key, {}, {})
