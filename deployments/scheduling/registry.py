"""The scheduler that a configuration asks for; a new scheduler is added here."""

import math
from collections.abc import Callable
from typing import Final

from app.core.errors import invalid_arg, unsupported
from app.core.observability.statistics import Statistics
from backends.base import Model
from deployments.scheduling.admission import Admission
from deployments.scheduling.base import DirectScheduler, Scheduler
from deployments.scheduling.dynamic.configured import dynamic_scheduler, has_queue_policy
from deployments.scheduling.dynamic.serve_batch import MakeBatched, serve_batched
from deployments.scheduling.queue import RequestQueue
from deployments.scheduling.sequence.scheduler import SequenceScheduler
from deployments.spec import ModelSpec

_MAX_QUEUE: Final = "max_queue_secs"
"""The parameter of a model's configuration in place of `--max-queue-secs`."""

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
    limits = spec.server.limits
    bounds = limits.max_pending_requests, limits.max_pending_bytes
    return DirectScheduler(statistics, RequestQueue(*bounds, _admission(model, spec, batch=1)))


def _dynamic(model: Model, spec: ModelSpec, statistics: Statistics, batched: MakeBatched) -> Scheduler:
    if model.config.max_batch_size < 2 and not has_queue_policy(model.config.dynamic_batching):
        return _direct(model, spec, statistics, batched)
    admission = _admission(model, spec, model.config.max_batch_size)
    return dynamic_scheduler(model, spec, statistics, batched, admission)


def _sequence(model: Model, spec: ModelSpec, statistics: Statistics, batched: MakeBatched) -> Scheduler:
    limits = spec.server.limits
    bounds = limits.max_pending_requests, limits.max_pending_bytes
    admission = _admission(model, spec, max(model.config.max_batch_size, 1))
    return SequenceScheduler(statistics, model.config, model.directory, *bounds, admission)


def _admission(model: Model, spec: ModelSpec, batch: int) -> Admission:
    """Make what refuses requests under overload; the model's own bound comes before the server's.

    Raises:
        InferError: INVALID_ARG for a `max_queue_secs` that is no number of seconds.
    """
    text = model.parameter(_MAX_QUEUE)
    try:
        max_queue_s = float(text) if text else spec.server.limits.max_queue_s
    except ValueError:
        max_queue_s = -1.0
    if not 0 <= max_queue_s < math.inf:
        raise invalid_arg(f"model '{model.name}': parameter '{_MAX_QUEUE}' is no number of seconds: '{text}'")
    return Admission(batch, max_queue_s, spec.server.limits.learn_max_queue)


_MAKE: Final[dict[str, Make]] = {"": _direct, "dynamic_batching": _dynamic, "sequence_batching": _sequence}
