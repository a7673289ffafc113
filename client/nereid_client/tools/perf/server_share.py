"""The server's part of a load's latency: its statistics after the load less those before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nereid_client import Server, ServerError


@dataclass(frozen=True)
class Share:
    """What a model did in a time; durations are means of a request, in microseconds.

    Attributes:
        total_us: of a request in the model; what it has beyond the parts is copying and scheduling.
        inferences: rows; `executions` of batches.
        steps: of an ensemble, by the name of the model.
        counted_anew: the counters began anew in that time: the model was loaded, or its process restarted.
    """

    requests: int = 0
    failures: int = 0
    inferences: int = 0
    executions: int = 0
    total_us: float = 0.0
    queue_us: float = 0.0
    compute_input_us: float = 0.0
    compute_infer_us: float = 0.0
    compute_output_us: float = 0.0
    cache_hits: int = 0
    steps: dict[str, Share] = field(default_factory=dict)
    counted_anew: bool = False

    @property
    def mean_batch(self) -> float:
        """Rows of an execution."""
        return self.inferences / self.executions if self.executions else 0.0


Counts = Mapping[str, Sequence[Mapping[str, Any]]]
"""Statistics by model, a row for each version."""


def models_of(server: Server, model: str, version: str, seen: frozenset[str] = frozenset()) -> list[str]:
    """Return a model and, if it is an ensemble, the models of its steps."""
    if model in seen:
        return []
    _, config = server.model(model, version).described()
    steps = (config.get("ensemble_scheduling") or {}).get("step") or []
    found = [model]
    for step in steps:
        for name in models_of(server, step["model_name"], "", seen | {model}):
            if name not in found:
                found.append(name)
    return found


def counts_of(server: Server, models: Sequence[str], version: str) -> Counts | None:
    """Return the statistics of models, the first of which in a version; None if the server has none."""
    try:
        return {
            name: server.statistics(name, version if place == 0 else "") for place, name in enumerate(models)
        }
    except ServerError:
        return None


def share(before: Counts | None, after: Counts | None) -> Share | None:
    """Return what has been counted between two moments; None where that is not known."""
    if not before or not after:
        return None
    first, *steps = after
    own = _share(before[first], after[first])
    found = {name: _share(before.get(name, ()), after[name]) for name in steps}
    return Share(**{**vars(own), "steps": found})


def _share(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> Share:
    earlier = {row.get("version", ""): row for row in before}
    ends = [row.get("version", "") for row in after]
    anew = any(
        _number(row, "inference_count") < _number(earlier.get(row.get("version", ""), {}), "inference_count")
        for row in after
    )
    anew |= set(ends) != set(earlier)

    def grown(*path: str) -> int:
        old = 0 if anew else sum(_number(row, *path) for row in before)
        return sum(_number(row, *path) for row in after) - old

    requests = grown("inference_stats", "success", "count")

    def mean_us(part: str) -> float:
        count = grown("inference_stats", part, "count")
        return grown("inference_stats", part, "ns") / count / 1e3 if count > 0 else 0.0

    return Share(
        requests=requests,
        failures=grown("inference_stats", "fail", "count"),
        inferences=grown("inference_count"),
        executions=grown("execution_count"),
        total_us=mean_us("success"),
        queue_us=mean_us("queue"),
        compute_input_us=mean_us("compute_input"),
        compute_infer_us=mean_us("compute_infer"),
        compute_output_us=mean_us("compute_output"),
        cache_hits=grown("inference_stats", "cache_hit", "count"),
        counted_anew=anew,
    )


def _number(row: Mapping[str, Any], *path: str) -> int:
    value: Any = row
    for name in path:
        value = (value or {}).get(name, 0)
    return int(value or 0)
