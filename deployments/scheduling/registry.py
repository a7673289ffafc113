"""The scheduler that a configuration asks for; a new scheduler is added here."""

from collections.abc import Callable
from typing import Final

from app.core.errors import unsupported
from app.core.statistics import Statistics
from backends.base import Model
from deployments.scheduling.base import DirectScheduler, Scheduler
from deployments.scheduling.dynamic.configured import dynamic_scheduler
from deployments.scheduling.dynamic.serve_batch import MakeBatched, serve_batched
from deployments.scheduling.queue import RequestQueue
from deployments.scheduling.sequence.scheduler import SequenceScheduler
from deployments.spec import ModelSpec

Make = Callable[[Model, ModelSpec, Statistics, MakeBatched], Scheduler]


def make_scheduler(
    model: Model, spec: ModelSpec, statistics: Statistics, batched: MakeBatched = serve_batched
) -> Scheduler:
    """Make the scheduler of a model, by its `scheduling_choice`.

    Args:
        model: the model with its complete configuration.
        spec: bounds of what may be queued.
        statistics: counters of executions.
        batched: `serve_batched`, except in tests.

    Raises:
        InferError: UNSUPPORTED for an ensemble, which has no scheduler; what making one raises.
    """
    choice = model.config.WhichOneof("scheduling_choice") or ""
    if choice not in _MAKE:
        raise unsupported(f"model '{model.name}': {choice} is not available in this release")
    return _MAKE[choice](model, spec, statistics, batched)


def _direct(model: Model, spec: ModelSpec, statistics: Statistics, batched: MakeBatched) -> Scheduler:
    return DirectScheduler(statistics, RequestQueue(spec.max_pending_requests, spec.max_pending_bytes))


def _dynamic(model: Model, spec: ModelSpec, statistics: Statistics, batched: MakeBatched) -> Scheduler:
    if model.config.max_batch_size < 2:
        return _direct(model, spec, statistics, batched)
    return dynamic_scheduler(model, spec, statistics, batched)


def _sequence(model: Model, spec: ModelSpec, statistics: Statistics, batched: MakeBatched) -> Scheduler:
    bounds = spec.max_pending_requests, spec.max_pending_bytes
    return SequenceScheduler(statistics, model.config, model.directory, *bounds)


_MAKE: Final[dict[str, Make]] = {"": _direct, "dynamic_batching": _dynamic, "sequence_batching": _sequence}
