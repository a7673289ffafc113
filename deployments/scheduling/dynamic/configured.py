"""Makes the dynamic batcher that a model's configuration describes."""

from tritonclient.grpc import model_config_pb2 as mc

from app.core.observability.statistics import Statistics
from backends.base import Model
from backends.registry.strategies import find_strategy
from deployments.scheduling.admission import Admission
from deployments.scheduling.delays import delay_scheduler
from deployments.scheduling.dynamic.batch_policy import BatchPolicy
from deployments.scheduling.dynamic.policy_queue import PolicyQueue, QueuePolicies
from deployments.scheduling.dynamic.scheduler import DynamicScheduler
from deployments.scheduling.dynamic.serve_batch import MakeBatched, ServeBatch
from deployments.scheduling.queue import RequestQueue
from deployments.scheduling.shape_key import make_shape_key
from deployments.spec import ModelSpec


def dynamic_scheduler(
    model: Model, spec: ModelSpec, statistics: Statistics, batched: MakeBatched, admission: Admission
) -> DynamicScheduler:
    """Make the scheduler of a model with `dynamic_batching`; without batches it has a queue policy.

    Raises:
        InferError: the custom batching strategy cannot be loaded.
    """
    config = model.config
    batching = config.dynamic_batching
    max_rows = max(config.max_batch_size, 1)
    return DynamicScheduler(
        statistics,
        request_queue(batching, spec, admission),
        batch_policy(max_rows, batching),
        ServeBatch(max_rows, batched),
        shape_key=make_shape_key(config),
        strategy=find_strategy(model, spec.server.backends.path),
        ordered=spec.server.limits.max_pending_requests if batching.preserve_ordering else 0,
        start_threshold=delay_scheduler(),
    )


def has_queue_policy(batching: mc.ModelDynamicBatching) -> bool:
    """Return whether a configuration says what holds without batches too."""
    return bool(
        batching.preserve_ordering or batching.priority_levels or batching.HasField("default_queue_policy")
    )


def batch_policy(max_rows: int, batching: mc.ModelDynamicBatching) -> BatchPolicy:
    """Read the sizes and the delay of a configuration."""
    preferred = tuple(sorted(set(batching.preferred_batch_size)))
    return BatchPolicy(max_rows, preferred, batching.max_queue_delay_microseconds * 1000)


def request_queue(
    batching: mc.ModelDynamicBatching, spec: ModelSpec, admission: Admission | None = None
) -> RequestQueue:
    """Make the queue: the plain one, which is the fastest, unless there are priorities or timeouts."""
    policies, limits = QueuePolicies.from_config(batching), spec.server.limits
    if not policies.plain:
        bounds = limits.max_pending_requests, limits.max_pending_bytes
        return PolicyQueue(*bounds, policies, admission=admission)
    own_limit = policies.policy(policies.default_level).max_size or limits.max_pending_requests
    return RequestQueue(min(own_limit, limits.max_pending_requests), limits.max_pending_bytes, admission)
