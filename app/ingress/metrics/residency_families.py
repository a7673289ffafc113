"""The metric families of models on demand, and of the requests that wait for them."""

from typing import Final

from app.core.residency import ResidencyReport
from app.ingress.metrics.family import Family, gauge, value
from app.routing.waiting_room import WaitingCounts

WAITING: Final[tuple[Family[WaitingCounts], ...]] = (
    gauge(
        "nereid_waiting_requests",
        "Requests of this ingress replica that wait for a replica of their model",
        lambda counts: counts.requests,
    ),
    gauge("nereid_waiting_bytes", "Bytes of those requests", lambda counts: counts.nbytes),
    Family(
        "nereid_waiting_refused",
        "counter",
        "Requests refused because too many waited, or too many bytes",
        value(lambda counts: counts.refused),
    ),
    Family(
        "nereid_waiting_expired",
        "counter",
        "Requests whose deadline or longest wait was over before their model had a replica",
        value(lambda counts: counts.expired),
    ),
)

RESIDENCY: Final[tuple[Family[ResidencyReport], ...]] = (
    gauge(
        "nereid_model_memory_budget_bytes", "The value of --model-memory-bytes", lambda found: found.budget
    ),
    gauge(
        "nereid_model_memory_bytes",
        "Memory of all replicas of models, and what loads are expected to need",
        lambda found: found.nbytes,
    ),
    gauge("nereid_models_resident", "Models with a replica", lambda found: found.models),
    gauge(
        "nereid_models_registered", "Models that are ready, with a replica or without", lambda f: f.registered
    ),
    Family(
        "nereid_model_demands",
        "counter",
        "Loads that requests asked for",
        value(lambda found: found.demanded),
    ),
    Family(
        "nereid_model_demands_failed",
        "counter",
        "Loads that requests asked for and that failed",
        value(lambda found: found.failed),
    ),
    Family(
        "nereid_model_evictions",
        "counter",
        "Models unloaded because others needed their memory",
        value(lambda found: found.evicted),
    ),
    gauge(
        "nereid_model_evicted_age_seconds",
        "Time from the last use to the eviction of the model evicted last; a short one tells of thrashing",
        lambda found: found.evicted_age_s,
    ),
)
