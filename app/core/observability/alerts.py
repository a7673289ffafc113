"""Which figures a person should look at, for the console; a test compares them with `cluster/prometheus`."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

MINUTE: Final = 60.0
DAY: Final = 86400.0
Reading = Literal["increase", "value", "growth", "since"]
"""What is read of a metric: by how much a counter has grown; the value of now; the least value of the last
while, where it is above all of those a while before that one; seconds since the time that it is, negative
before."""


class Rule(NamedTuple):
    """When samples of metrics make an alert.

    Attributes:
        name: as in `cluster/prometheus/nereid.rules.yml`.
        metrics: those that are added up, for each set of labels.
        above: the sum that is too much; a part of `over`, if that is given.
        within_s: the while of "increase" and "growth"; 0 for readings of now.
        reading: see `Reading`.
        labels: values of a label that count; empty for all.
        over: further metrics, by whose sum that of `metrics` is divided.
        per, least: others by which it is divided too, and must then be above this.
        severity: "critical" or "warning".
        says: what is told; names in braces are labels.
        advice: what to do.
        page: of the console, with more; "" for that of the model.
    """

    name: str
    metrics: tuple[str, ...]
    above: float
    within_s: float
    says: str
    advice: str
    labels: Mapping[str, frozenset[str]] = {}
    over: tuple[str, ...] = ()
    reading: Reading = "increase"
    per: tuple[str, ...] = ()
    least: float = float("-inf")
    severity: str = "warning"
    page: str = ""


FAILURES: Final = "nv_inference_request_failure"
SUCCESSES: Final = "nv_inference_request_success"
RESTARTS: Final = "nereid_replica_restarts"
PENDING: Final = "nv_inference_pending_request_count"
QUEUE_S: Final = "nereid_queue_duration_seconds_sum"
QUEUED: Final = "nereid_queue_duration_seconds_count"
COMPUTE_S: Final = "nereid_compute_duration_seconds_sum"
_GPU_USED, _GPU_TOTAL = "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes"


def _of(label: str, *values: str) -> Mapping[str, frozenset[str]]:
    return {label: frozenset(values)}


RULES: Final = (
    Rule(
        "NereidFailing",
        (FAILURES,),
        0.05,
        5 * MINUTE,
        "{model} {version}: more than 5 % of the requests fail",
        "Reasons and errors are on the page of the model, and in the log.",
        _of("reason", "REJECTED", "BACKEND", "OTHER"),
        (SUCCESSES, FAILURES),
        severity="critical",
    ),
    Rule(
        "NereidQueueFull",
        (FAILURES,),
        0,
        5 * MINUTE,
        "{model} {version}: requests are refused",
        "The queue is full, or they would wait beyond their deadlines. Add instances or replicas.",
        _of("reason", "REJECTED"),
    ),
    Rule(
        "NereidQueueing",
        (QUEUE_S,),
        2,
        5 * MINUTE,
        "{model} {version}: requests wait more than twice as long as they are computed",
        "Add instances, replicas or larger batches.",
        over=(COMPUTE_S,),
        per=(QUEUED,),
        least=0.01,
    ),
    Rule(
        "NereidQueueGrows",
        (PENDING,),
        10,
        5 * MINUTE,
        "{model} {version}: more and more requests wait",
        "More come than are answered. Add instances or replicas, or look for what slows it.",
        reading="growth",
    ),
    Rule(
        "NereidReplicaRestarts",
        (RESTARTS,),
        2,
        15 * MINUTE,
        "{model} {version}: replicas end unexpectedly",
        "The log tells how they ended.",
        severity="critical",
        page="logs",
    ),
    Rule(
        "NereidLoadFailed",
        ("nereid_model_load_failure",),
        0,
        10 * MINUTE,
        "{model}: a load failed",
        "A version that was served before still is. The log has the reason.",
        page="logs",
    ),
    Rule(
        "NereidRolloutStopped",
        ("nereid_rollout_state",),
        0,
        0,
        "{model}: the rollout is {state}",
        "Its page has the reason and the evidence, and what can be done.",
        _of("state", "paused", "rolling_back"),
        reading="value",
        page="rollout",
    ),
    Rule(
        "NereidRolloutFailed",
        ("nereid_rollout_failure",),
        0,
        15 * MINUTE,
        "{model}: a rollout failed",
        "Its page has the reason and the evidence. Requests go to the version that answered before.",
        page="rollout",
    ),
    Rule(
        "NereidDrift",
        ("nereid_drift_alarm",),
        0,
        0,
        "{model} {version}: requests do not look as they did",
        "The page of its drift shows which inputs or outputs differ from the reference.",
        reading="value",
        page="drift",
    ),
    Rule(
        "NereidTapeDrops",
        ("nereid_tape_dropped",),
        0,
        10 * MINUTE,
        "The tape lacks requests: {reason}",
        "queue: more come than the disk takes; space: it is nearly full; else the log has the error.",
        _of("reason", "queue", "disk", "space", "fault"),
        page="logs",
    ),
    Rule(
        "NereidTokenLimited",
        ("nereid_token_requests",),
        0,
        10 * MINUTE,
        "{token}: requests are refused, because its limit or budget is used up",
        "The page of costs shows what it consumed; limits and budgets are in the file of tokens.",
        _of("outcome", "limited"),
        page="cost",
    ),
    Rule(
        "NereidSlowClients",
        ("nereid_slow_client_ended", "nereid_slow_client_timeouts"),
        0,
        10 * MINUTE,
        "Slow clients were disconnected",
        "They read responses below the minimum rate, or response buffers reached their limit.",
        page="logs",
    ),
    Rule(
        "NereidConnectionsRefused",
        ("nereid_connections_refused",),
        0,
        10 * MINUTE,
        "{front} connections are refused",
        "There are as many as --max-connections allows.",
        page="server",
    ),
    Rule(
        "NereidDemandFailing",
        ("nereid_model_demands_failed",),
        0,
        10 * MINUTE,
        "Loads on demand failed",
        "The models that do not work have the reasons.",
        page="logs",
    ),
    Rule(
        "NereidWaitingRoomFull",
        ("nereid_waiting_refused",),
        0,
        10 * MINUTE,
        "Requests for models without a replica were refused",
        "Too many wait for loads.",
        page="server",
    ),
    Rule(
        "NereidGpuMemory",
        (_GPU_USED,),
        0.9,
        0,
        "GPU {gpu_uuid}: more than 90 % of the memory is used",
        "The next load, or a larger batch, may find none.",
        over=(_GPU_TOTAL,),
        reading="value",
        page="server",
    ),
    Rule(
        "NereidCertificateExpires",
        ("nereid_certificate_expiry_timestamp_seconds",),
        -14 * DAY,
        0,
        "The {front} certificate expires within 14 days",
        "A new one is used from the next start of the server on.",
        reading="since",
        page="server",
    ),
)
READ: Final = frozenset(metric for rule in RULES for metric in (*rule.metrics, *rule.over, *rule.per))
"""The metrics that the rules read."""
