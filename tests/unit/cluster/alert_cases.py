"""Series that each alert of `cluster/prometheus/nereid.rules.yml` fires at, and others that it does not.

Values are as promtool reads them, one a minute from time 0: "0+5x60" begins at 0 and adds 5 sixty times.
"""

from typing import Final, NamedTuple

Series = dict[str, str]

SUCCESS: Final = "nv_inference_request_success{}"
FAILURE: Final = 'nv_inference_request_failure{reason="%s"}'
BUCKET: Final = 'nereid_request_duration_seconds_bucket{le="0.25"}'
COUNT: Final = "nereid_request_duration_seconds_count{}"
LOADS: Final = "nereid_model_load_failure{}"
READY: Final = "nereid_model_ready{}"
STATE: Final = 'nereid_model_state{state="%s"}'
USED: Final = "nv_cpu_memory_used_bytes{}"
TOTAL: Final = "nv_cpu_memory_total_bytes{}"
ROLLOUTS: Final = "nereid_rollout_failure{}"
PENDING: Final = "nv_inference_pending_request_count{}"
EXPIRY: Final = 'nereid_certificate_expiry_timestamp_seconds{front="http"}'


class Case(NamedTuple):
    """Servers, one of which has the fault, and the minutes after which it is looked at."""

    minutes: int
    faulty: Series
    well: Series
    other: Series = {}


def waiting(queue_s: float, compute_s: float) -> Series:
    """Series of a model with 60 requests a minute of these mean times."""
    found = {}
    for kind, seconds in (("queue", queue_s), ("compute", compute_s)):
        found[f"nereid_{kind}_duration_seconds_sum{{}}"] = f"0+{60 * seconds}x60"
        found[f"nereid_{kind}_duration_seconds_count{{}}"] = "0+60x60"
    return found


def rollout(stable: int, candidate: int) -> Series:
    """Series of a rollout, of which so many of 1000 requests a minute fail."""
    found = {}
    for role, failures in (("stable", stable), ("candidate", candidate)):
        found[f'nereid_rollout_requests{{role="{role}",outcome="failed"}}'] = f"0+{failures}x40"
        found[f'nereid_rollout_requests{{role="{role}",outcome="ok"}}'] = f"0+{1000 - failures}x40"
        found[f'nereid_rollout_requests{{role="{role}",outcome="refused"}}'] = "0+500x40"
    return found


def latencies(stable_s: float, candidate_s: float) -> Series:
    """Series of a rollout, whose requests all take these times at most, and more than nothing."""
    found = {}
    for role, bound in (("stable", stable_s), ("candidate", candidate_s)):
        for le in (f"{bound:g}", "+Inf"):
            found[f'nereid_rollout_latency_seconds_bucket{{role="{role}",le="{le}"}}'] = "0+1000x40"
    return found


def evicting(times: int, age_s: float) -> Series:
    """Series of models on demand, one of them evicted every so many minutes."""
    return {"nereid_model_evictions{}": f"0+{times}x40", "nereid_model_evicted_age_seconds{}": f"{age_s}x40"}


def slow(share: float, minutes: int) -> Series:
    """Series of a model with 1000 requests a minute, this share of them above 250 ms."""
    return {BUCKET: f"0+{1000 * (1 - share):g}x{minutes}", COUNT: f"0+1000x{minutes}"}


CASES: Final[dict[str, Case]] = {
    "NereidSlow": Case(90, slow(0.15, 100), slow(0.14, 100)),
    "NereidSlowly": Case(400, slow(0.07, 420), slow(0.05, 420)),
    "NereidFailing": Case(
        20,
        {SUCCESS: "0+94x30", FAILURE % "BACKEND": "0+6x30"},
        {SUCCESS: "0+94x30", FAILURE % "BACKEND": "0+3x30", FAILURE % "CANCELED": "0+50x30"},
    ),
    "NereidQueueing": Case(30, waiting(0.21, 0.1), waiting(0.19, 0.1), waiting(0.009, 0.001)),
    "NereidQueueGrows": Case(30, {PENDING: "0+2x40"}, {PENDING: "100x40"}, {PENDING: "0x26 90x20"}),
    "NereidQueueFull": Case(20, {FAILURE % "REJECTED": "0+1x30"}, {FAILURE % "BACKEND": "0+1x30"}),
    "NereidDrift": Case(10, {"nereid_drift_alarm{}": "0x3 1x20"}, {"nereid_drift_alarm{}": "0x30"}),
    "NereidTapeDrops": Case(
        20,
        {'nereid_tape_dropped{reason="space"}': "0x15 1x15"},
        {'nereid_tape_dropped{reason="rate_limit"}': "0+9x30", 'nereid_tape_dropped{reason="disk"}': "7x30"},
    ),
    "NereidTokenLimited": Case(
        20,
        {'nereid_token_requests{token="web",outcome="limited"}': "0x15 1x15"},
        {'nereid_token_requests{token="web",outcome="ok"}': "0+9x30"},
    ),
    "NereidSlowClients": Case(
        20,
        {"nereid_slow_client_ended{}": "0+0x30", "nereid_slow_client_timeouts{}": "0x15 1x15"},
        {"nereid_slow_client_ended{}": "7x30", "nereid_slow_client_timeouts{}": "0x5 1x25"},
    ),
    "NereidConnectionsRefused": Case(
        20,
        {'nereid_connections_refused{front="http"}': "0x15 3x15"},
        {'nereid_connections_refused{front="http"}': "3x30"},
    ),
    "NereidModelNotReady": Case(9, {READY: "1x5 0x10"}, {READY: "1x7 0x10"}),
    "NereidModelUnavailable": Case(10, {STATE % "UNAVAILABLE": "1x20"}, {STATE % "LOADING": "1x20"}),
    "NereidModelFlapping": Case(10, {READY: "1 0 1 0 1 0 1x20"}, {READY: "1 0 1 0 1x20"}),
    "NereidLoadFailed": Case(20, {LOADS: "0x15 1x15"}, {LOADS: "1x30"}),
    "NereidReplicaRestarts": Case(
        20, {"nereid_replica_restarts{}": "0x9 1 2 3x15"}, {"nereid_replica_restarts{}": "0x10 1 2x15"}
    ),
    "NereidCanaryFailing": Case(30, rollout(10, 40), rollout(20, 45), rollout(0, 9)),
    "NereidCanarySlow": Case(30, latencies(0.1, 0.16), latencies(0.1, 0.14)),
    "NereidRolloutStopped": Case(
        10, {'nereid_rollout_state{state="paused"}': "1x20"}, {'nereid_rollout_state{state="step"}': "1x20"}
    ),
    "NereidRolloutFailed": Case(20, {ROLLOUTS: "0x15 1x15"}, {ROLLOUTS: "1x30"}),
    "NereidAtMaximum": Case(
        40,
        {"nereid_replicas_ready{}": "4x60", "nereid_replicas_maximum{}": "4x60"},
        {"nereid_replicas_ready{}": "4x30 3x30", "nereid_replicas_maximum{}": "4x60"},
        {"nereid_replicas_ready{}": "3x30 4x30", "nereid_replicas_maximum{}": "4x60"},
    ),
    "NereidThrashing": Case(30, evicting(1, 60), evicting(0, 60), evicting(1, 400)),
    "NereidDemandFailing": Case(
        20, {"nereid_model_demands_failed{}": "0x15 1x15"}, {"nereid_model_demands_failed{}": "1x30"}
    ),
    "NereidWaitingRoomFull": Case(
        20, {"nereid_waiting_refused{}": "0x15 1x15"}, {"nereid_waiting_refused{}": "1x30"}
    ),
    "NereidDown": Case(9, {'up{job="nereid"}': "1x5 0x10"}, {'up{job="nereid"}': "1x7 0x10"}),
    "NereidMemoryGrows": Case(
        500, {USED: "60+0.1x520", TOTAL: "100x520"}, {USED: "60+0.01x520", TOTAL: "100x520"}
    ),
    "NereidGpuMemory": Case(
        20,
        {
            'nv_gpu_memory_used_bytes{gpu_uuid="g"}': "91x30",
            'nv_gpu_memory_total_bytes{gpu_uuid="g"}': "100x30",
        },
        {
            'nv_gpu_memory_used_bytes{gpu_uuid="g"}': "89x30",
            'nv_gpu_memory_total_bytes{gpu_uuid="g"}': "100x30",
        },
    ),
    "NereidCertificateExpires": Case(10, {EXPIRY: f"{13 * 86400}x20"}, {EXPIRY: f"{15 * 86400}x20"}),
}


def first_failure(counter: str) -> Case:
    """Make a model with its first failure; one that was removed before Prometheus started; an old failure."""
    return Case(
        20,
        {counter: "_x15 1x15", STATE % "UNAVAILABLE": "1x30"},
        {counter: "_x15 1x15"},
        {counter: "1x30", STATE % "READY": "1x30"},
    )


FIRST_FAILURES: Final = {
    "NereidLoadFailed": first_failure(LOADS),
    "NereidRolloutFailed": first_failure(ROLLOUTS),
}
