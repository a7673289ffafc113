"""The configurations that a search chooses from, and what each changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import product
from typing import Any, NamedTuple


class Candidate(NamedTuple):
    """A configuration: rows of a batch, microseconds that a batch waits, instances, threads of each.

    `batch` 0 is a model without batches; `threads` 0 leaves the backend's default.
    """

    batch: int
    delay_us: int
    instances: int
    threads: int = 0

    def __str__(self) -> str:
        parts = [f"max_batch_size {self.batch}", f"delay {self.delay_us} us", _counted(self.instances)]
        return ", ".join(parts + ([f"{self.threads} threads"] if self.threads else []))


def _counted(instances: int) -> str:
    return "1 instance" if instances == 1 else f"{instances} instances"


class Axes(NamedTuple):
    """The values of each field of a candidate."""

    batches: Sequence[int]
    delays_us: Sequence[int]
    instances: Sequence[int]
    threads: Sequence[int] = (0,)

    def candidates(self) -> list[Candidate]:
        """Return all candidates; a delay is for batches alone."""
        found = dict.fromkeys(
            Candidate(batch, delay if batch > 1 else 0, instances, threads)
            for batch, delay, instances, threads in product(*self)
        )
        return list(found)


def present(config: Mapping[str, Any], threads: str) -> Candidate:
    """Return what a model's configuration says now; `threads` is its parameter for them, "" for none."""
    groups = config.get("instance_group") or [{}]
    batching = config.get("dynamic_batching")
    batch = int(config.get("max_batch_size", 0))
    delay = int((batching or {}).get("max_queue_delay_microseconds", 0))
    value = ((config.get("parameters") or {}).get(threads) or {}).get("string_value", "0")
    instances = sum(int(group.get("count", 1)) for group in groups)
    return Candidate(
        batch if batching is not None else min(batch, 1),
        delay,
        instances,
        int(value) if value.isdigit() else 0,
    )


def unsuited(config: Mapping[str, Any]) -> str:
    """Return why a model cannot be searched; "" if it can."""
    if config.get("sequence_batching") is not None:
        return "the requests of sequences are not batched by chance"
    if (config.get("model_transaction_policy") or {}).get("decoupled"):
        return "responses of a decoupled model are not answers to single requests"
    return ""


def configured(config: Mapping[str, Any], candidate: Candidate, threads: str) -> dict[str, Any]:
    """Return a configuration with a candidate's values; `threads` as for `present`."""
    made = deepcopy(dict(config))
    if int(config.get("max_batch_size", 0)) > 0:
        made["max_batch_size"] = max(candidate.batch, 1)
        batching = dict(made.get("dynamic_batching") or {})
        batching.pop("preferred_batch_size", None)
        batching["max_queue_delay_microseconds"] = candidate.delay_us
        made["dynamic_batching"] = batching
        if candidate.batch <= 1:
            del made["dynamic_batching"]
    group = dict((made.get("instance_group") or [{}])[0])
    group["count"] = candidate.instances
    made["instance_group"] = [group]
    if candidate.threads:
        parameters = dict(made.get("parameters") or {})
        parameters[threads] = {"string_value": str(candidate.threads)}
        made["parameters"] = parameters
    return made
