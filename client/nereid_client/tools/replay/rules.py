"""Which differences of outputs are right: of each model, read from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from nereid_client.comparison.rules import ComparisonRules
from nereid_client.tools.replay.options import ReplayError


@dataclass(frozen=True)
class Rules:
    """Rules of each model that has some of its own, and of all others."""

    others: ComparisonRules = field(default_factory=ComparisonRules)
    models: Mapping[str, ComparisonRules] = field(default_factory=dict)

    def of(self, model: str) -> ComparisonRules:
        """Return the rules of a model."""
        return self.models.get(model, self.others)


def read_rules(path: Path) -> Rules:
    """Read a file in YAML or JSON: rules, `models` with rules by name, or a `rollout.yaml` that has some.

    Raises:
        ReplayError: it cannot be read, or has something else.
    """
    try:
        found = yaml.safe_load(path.read_text())
        if not isinstance(found, Mapping):
            raise ValueError("it has no rules, such as `outputs: {OUT: {atol: 0.01}}`")
        judge = found.get("judge")
        if isinstance(judge, Mapping):
            return Rules(_rules(judge.get("output") or {}))
        models = found.get("models") or {}
        others = {name: value for name, value in found.items() if name != "models"}
        return Rules(_rules(others), {str(name): _rules(value) for name, value in dict(models).items()})
    except OSError as error:
        raise ReplayError(f"--rules: {path}: {error.strerror}") from None
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ReplayError(f"--rules: {path}: {error}") from None


def _rules(value: Any) -> ComparisonRules:
    return msgspec.convert(value, ComparisonRules)


def without(rules: ComparisonRules, outputs: frozenset[str]) -> ComparisonRules:
    """Return rules by which these outputs are not compared."""
    return msgspec.structs.replace(rules, outputs={**rules.outputs, **dict.fromkeys(outputs, "ignore")})
