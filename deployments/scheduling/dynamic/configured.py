"""The dynamic batcher that a model's configuration describes."""

from pathlib import Path
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.statistics import Statistics
from backends.base import Model
from backends.strategy import find_strategy
from deployments.scheduling.delays import delay_scheduler
from deployments.scheduling.dynamic.batch_policy import BatchPolicy
from deployments.scheduling.dynamic.policy_queue import PolicyQueue, QueuePolicies
from deployments.scheduling.dynamic.scheduler import DynamicScheduler, MakeBatched, execute
from deployments.scheduling.queue import RequestQueue
from deployments.spec import ModelSpec

_MAX_BATCHES: Final = 1024
"""What `@serve.batch` may have under way: the scheduler gives no instance two, and instances come and go."""


def dynamic_scheduler(
    model: Model, statistics: Statistics, spec: ModelSpec, batched: MakeBatched
) -> DynamicScheduler:
    """Make the scheduler of a model with `dynamic_batching` and a max_batch_size above 1.

    Raises:
        InferError: the custom batching strategy cannot be loaded.
    """
    config = model.config
    batching = config.dynamic_batching
    return DynamicScheduler(
        statistics,
        request_queue(batching, spec),
        batch_policy(config.max_batch_size, batching),
        batched(execute, config.max_batch_size, _MAX_BATCHES),
        strategy=find_strategy(model, Path(spec.backend_directory) if spec.backend_directory else None),
        ordered=spec.max_pending_requests if batching.preserve_ordering else 0,
        hold=delay_scheduler(),
    )


def batch_policy(max_rows: int, batching: mc.ModelDynamicBatching) -> BatchPolicy:
    """The sizes and the delay."""
    preferred = tuple(sorted(set(batching.preferred_batch_size)))
    return BatchPolicy(max_rows, preferred, batching.max_queue_delay_microseconds * 1000)


def request_queue(batching: mc.ModelDynamicBatching, spec: ModelSpec) -> RequestQueue:
    """The queue; the plain one, which is the fastest, unless there are priorities or timeouts."""
    policies = QueuePolicies.of(batching)
    if not policies.plain:
        return PolicyQueue(spec.max_pending_requests, spec.max_pending_bytes, policies)
    own_limit = policies.policy(policies.default_level).max_size or spec.max_pending_requests
    return RequestQueue(min(own_limit, spec.max_pending_requests), spec.max_pending_bytes)
