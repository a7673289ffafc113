"""The panels of the dashboards, and the expressions that they show."""

from typing import Final, NamedTuple

INSTANCES: Final = 'instance=~"$instance"'
MODELS: Final = f'model=~"$model",{INSTANCES}'
VERSIONS: Final = f'version=~"$version",{MODELS}'
BY: Final = "model, version"
VERSION: Final = "{{model}} {{version}}"


class Panel(NamedTuple):
    """A panel; `queries` are expressions by legend, `unit` is Grafana's."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    about: str = ""


def rate(metric: str, selector: str, by: str = BY) -> str:
    """Return a counter's increase a second."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def quantile(share: float, kind: str, selector: str, by: str = BY) -> str:
    """Return a quantile of one of the histograms of durations."""
    buckets = rate(f"nereid_{kind}_duration_seconds_bucket", selector, f"{by}, le")
    return f"histogram_quantile({share}, {buckets})"


def mean(kind: str, selector: str) -> str:
    """Return the mean of one of the histograms of durations."""
    family = f"nereid_{kind}_duration_seconds"
    return f"{rate(f'{family}_sum', selector)} / {rate(f'{family}_count', selector)}"


def failing(selector: str, by: str) -> str:
    """Return the share of requests that fail, without those that their clients cancelled."""
    failed = rate("nv_inference_request_failure", f'reason!="CANCELED",{selector}', by)
    return f"{failed} / ({rate('nv_inference_request_success', selector, by)} + {failed})"


def stat(title: str, expr: str, unit: str = "short", about: str = "") -> Panel:
    """Make a panel of one number."""
    return Panel(title, {"": expr}, unit, "stat", 4, about=about)


FLEET: Final = (
    stat("Nodes that answer", f"count(nereid_build_info{{{INSTANCES}}})"),
    stat("Versions ready", f"count(min by ({BY}) (nereid_model_ready{{{MODELS}}}) == 1) or vector(0)"),
    stat(
        "Versions not ready",
        f"(count(min by ({BY}) (nereid_model_ready{{{MODELS}}}) == 0) or vector(0))"
        f' + (count(max by ({BY}) (nereid_model_state{{state=~"UNAVAILABLE|UNKNOWN",{MODELS}}}))'
        " or vector(0))",
        about="Not ready at one node at least, or not loaded.",
    ),
    stat("Requests", f"sum({rate('nv_inference_request_success', MODELS)})", "reqps"),
    stat("Failing", f"sum({failing(MODELS, 'job')})", "percentunit"),
    stat("p99", quantile(0.99, "request", MODELS, "job"), "s"),
    Panel("Requests", {"{{model}}": rate("nv_inference_request_success", MODELS, "model")}, "reqps"),
    Panel("Failing share", {"{{model}}": failing(MODELS, "model")}, "percentunit"),
    Panel("p99", {"{{model}}": quantile(0.99, "request", MODELS, "model")}, "s"),
    Panel(
        "Pending",
        {"{{model}}": f"sum by (model) (nv_inference_pending_request_count{{{MODELS}}})"},
        about="Requests that are queued or executed.",
    ),
    Panel("Replicas ready", {VERSION: f"sum by ({BY}) (nereid_replicas_ready{{{MODELS}}})"}),
    Panel(
        "Replicas restarted",
        {VERSION: f"sum by ({BY}) (increase(nereid_replica_restarts{{{MODELS}}}[$__rate_interval]))"},
    ),
    Panel("CPU", {"{{instance}}": f"nv_cpu_utilization{{{INSTANCES}}}"}, "percentunit"),
    Panel(
        "Memory",
        {
            "{{instance}}": f"nv_cpu_memory_used_bytes{{{INSTANCES}}}"
            f" / nv_cpu_memory_total_bytes{{{INSTANCES}}}"
        },
        "percentunit",
    ),
    Panel(
        "GPU memory",
        {
            "{{instance}} {{gpu_uuid}}": f"nv_gpu_memory_used_bytes{{{INSTANCES}}}"
            f" / nv_gpu_memory_total_bytes{{{INSTANCES}}}"
        },
        "percentunit",
    ),
    Panel("Connections", {"{{instance}} {{front}}": f"nereid_connections{{{INSTANCES}}}"}),
    Panel(
        "Models on demand",
        {
            "with a replica": f"max(nereid_models_resident{{{INSTANCES}}})",
            "registered": f"max(nereid_models_registered{{{INSTANCES}}})",
        },
        about="With --model-memory-bytes.",
    ),
    Panel(
        "Memory of models on demand",
        {
            "used or reserved": f"max(nereid_model_memory_bytes{{{INSTANCES}}})",
            "budget": f"max(nereid_model_memory_budget_bytes{{{INSTANCES}}})",
        },
        "bytes",
    ),
    Panel(
        "Loads on demand",
        {
            "loads": f"max(rate(nereid_model_demands{{{INSTANCES}}}[$__rate_interval]))",
            "failed": f"max(rate(nereid_model_demands_failed{{{INSTANCES}}}[$__rate_interval]))",
            "evictions": f"max(rate(nereid_model_evictions{{{INSTANCES}}}[$__rate_interval]))",
        },
        "ops",
    ),
    Panel(
        "Idle time of the last evicted",
        {"": f"max(nereid_model_evicted_age_seconds{{{INSTANCES}}})"},
        "s",
        about="Short: models throw each other out.",
    ),
    Panel(
        "Requests that wait for a replica",
        {"{{instance}}": f"nereid_waiting_requests{{{INSTANCES}}}"},
    ),
    Panel(
        "Rollouts",
        {"": f"max by (model, version, role, state) (nereid_rollout_state{{{MODELS}}})"},
        kind="table",
    ),
    Panel(
        "States",
        {"": f"max by (model, version, state) (nereid_model_state{{{MODELS}}})"},
        kind="table",
        about="What the repository index says, without versions that were unloaded by request.",
    ),
    Panel(
        "Versions of the software",
        {"": f"max by (instance, version, ray, python) (nereid_build_info{{{INSTANCES}}})"},
        kind="table",
    ),
)

MODEL: Final = (
    Panel("Requests", {VERSION: rate("nv_inference_request_success", VERSIONS)}, "reqps"),
    Panel(
        "Failures",
        {
            "{{version}} {{reason}}": rate("nv_inference_request_failure", VERSIONS, "version, reason"),
            "{{version}} refused: {{reason}}": rate("nereid_request_refusal", VERSIONS, "version, reason"),
        },
        "reqps",
        about="By reason. Refused requests are also REJECTED; their reason is what limited the wait.",
    ),
    Panel(
        "Latency",
        {
            f"p{round(100 * share)} {VERSION}": quantile(share, "request", VERSIONS)
            for share in (0.5, 0.9, 0.99)
        },
        "s",
    ),
    Panel(
        "Where the time goes",
        {f"{kind} {VERSION}": mean(kind, VERSIONS) for kind in ("queue", "compute")},
        "s",
        stacked=True,
        about="Mean times of a request.",
    ),
    Panel("p99 in the queue", {VERSION: quantile(0.99, "queue", VERSIONS)}, "s"),
    Panel("p99 of computing", {VERSION: quantile(0.99, "compute", VERSIONS)}, "s"),
    Panel(
        "Compute time of a request",
        {
            step: rate(f"nv_inference_compute_{step}_duration_us", VERSIONS, "model")
            + f" / {rate('nv_inference_request_success', VERSIONS, 'model')}"
            for step in ("input", "infer", "output")
        },
        "µs",
        stacked=True,
    ),
    Panel(
        "Batch sizes",
        {"{{le}}": rate("nereid_batch_size_bucket", VERSIONS, "le")},
        kind="heatmap",
        about="Executions a second by their batch items; models with a dynamic batcher.",
    ),
    Panel(
        "Mean batch",
        {VERSION: rate("nv_inference_count", VERSIONS) + f" / {rate('nv_inference_exec_count', VERSIONS)}"},
    ),
    Panel(
        "Why batches are released",
        {"{{reason}}": rate("nereid_batch_release", VERSIONS, "reason")},
        "ops",
        stacked=True,
    ),
    Panel("Pending", {VERSION: f"sum by ({BY}) (nv_inference_pending_request_count{{{VERSIONS}}})"}),
    Panel(
        "Age of the queue",
        {
            f"oldest {VERSION}": f"max by ({BY}) (nereid_queue_age_us{{{VERSIONS}}})",
            f"expected wait {VERSION}": f"max by ({BY}) (nereid_expected_wait_us{{{VERSIONS}}})",
        },
        "µs",
    ),
    Panel(
        "Cache hits",
        {
            VERSION: rate("nv_cache_num_hits_per_model", VERSIONS)
            + f" / ({rate('nv_cache_num_hits_per_model', VERSIONS)}"
            + f" + {rate('nv_cache_num_misses_per_model', VERSIONS)})"
        },
        "percentunit",
    ),
    Panel("Ready", {VERSION: f"min by ({BY}) (nereid_model_ready{{{VERSIONS}}})"}),
    Panel(
        "Replicas",
        {
            f"ready {VERSION}": f"sum by ({BY}) (nereid_replicas_ready{{{VERSIONS}}})",
            f"wanted {VERSION}": f"max by ({BY}) (nereid_replicas_wanted{{{VERSIONS}}})",
            f"at most {VERSION}": f"max by ({BY}) (nereid_replicas_maximum{{{VERSIONS}}})",
        },
        about="Wanted and at most: models with max_replicas.",
    ),
    Panel(
        "Why the number of replicas changes",
        {
            "{{version}} {{reason}}": "max by (version, reason) "
            f"(increase(nereid_scaling_changes{{{VERSIONS}}}[$__rate_interval]))"
        },
    ),
    Panel(
        "Replicas lost",
        {
            "{{version}} {{reason}}": "max by (version, reason) "
            f"(increase(nereid_replica_lost{{{VERSIONS}}}[$__rate_interval]))"
        },
        about="By how they ended.",
    ),
    Panel(
        "Rollout: weight",
        {"{{role}} {{version}}": f"max by (role, version) (nereid_rollout_weight{{{MODELS}}})"},
        "percentunit",
        about="Of requests without a version.",
    ),
    Panel(
        "Rollout: failing share",
        {
            "{{role}} {{version}}": rate(
                "nereid_rollout_requests", f'outcome="failed",{MODELS}', "role, version"
            )
            + " / "
            + rate("nereid_rollout_requests", f'outcome=~"ok|failed",{MODELS}', "role, version")
        },
        "percentunit",
        about="As clients would see it, without requests that the stable version then answered.",
    ),
    Panel(
        "Rollout: p95",
        {
            "{{role}} {{version}}": "histogram_quantile(0.95, "
            + rate("nereid_rollout_latency_seconds_bucket", MODELS, "role, version, le")
            + ")"
        },
        "s",
    ),
    Panel(
        "Rollout: mirrored requests",
        {"{{outcome}}": rate("nereid_rollout_mirrored", MODELS, "outcome")},
        "reqps",
    ),
    Panel(
        "Rollout: answered by stable instead",
        {"{{role}} {{version}}": rate("nereid_rollout_rescued", MODELS, "role, version")},
        "reqps",
    ),
    Panel("Load time", {VERSION: f"max by ({BY}) (nv_model_load_duration_secs{{{VERSIONS}}})"}, "s"),
    Panel(
        "Failed loads",
        {"{{model}}": f"max by (model) (nereid_model_load_failure{{{MODELS}}})"},
        about="Since the repository manager started.",
    ),
)

NODE: Final = (
    Panel("CPU", {"{{instance}}": f"nv_cpu_utilization{{{INSTANCES}}}"}, "percentunit"),
    Panel(
        "Memory",
        {
            "used {{instance}}": f"nv_cpu_memory_used_bytes{{{INSTANCES}}}",
            "total {{instance}}": f"nv_cpu_memory_total_bytes{{{INSTANCES}}}",
        },
        "bytes",
    ),
    Panel(
        "Replicas ready",
        {VERSION: f"sum by ({BY}) (nereid_replicas_ready{{{MODELS}}}) > 0"},
        stacked=True,
    ),
    Panel("GPU", {"{{gpu_uuid}}": f"nv_gpu_utilization{{{INSTANCES}}}"}, "percentunit"),
    Panel(
        "GPU memory",
        {
            "used {{gpu_uuid}}": f"nv_gpu_memory_used_bytes{{{INSTANCES}}}",
            "total {{gpu_uuid}}": f"nv_gpu_memory_total_bytes{{{INSTANCES}}}",
        },
        "bytes",
    ),
    Panel(
        "GPU power",
        {
            "{{gpu_uuid}}": f"nv_gpu_power_usage{{{INSTANCES}}}",
            "limit {{gpu_uuid}}": f"nv_gpu_power_limit{{{INSTANCES}}}",
        },
        "watt",
    ),
    Panel(
        "CPU of the ingress",
        {"{{instance}}": rate("process_cpu_seconds_total", f'job="nereid",{INSTANCES}', "instance")},
        "percentunit",
        about="1 is a processor that is busy all the time.",
    ),
    Panel(
        "Memory of the ingress",
        {"{{instance}}": f'process_resident_memory_bytes{{job="nereid",{INSTANCES}}}'},
        "bytes",
    ),
    Panel(
        "File descriptors of the ingress",
        {
            "open {{instance}}": f'process_open_fds{{job="nereid",{INSTANCES}}}',
            "limit {{instance}}": f'process_max_fds{{job="nereid",{INSTANCES}}}',
        },
    ),
    Panel("Connections", {"{{front}} {{instance}}": f"nereid_connections{{{INSTANCES}}}"}),
    Panel(
        "Connections refused",
        {"{{front}} {{instance}}": rate("nereid_connections_refused", INSTANCES, "front, instance")},
        "cps",
    ),
    Panel("Unsent bytes", {"{{instance}}": f"nereid_unsent_bytes{{{INSTANCES}}}"}, "bytes"),
    Panel(
        "Slow clients",
        {
            "out of buffers {{instance}}": rate("nereid_slow_client_ended", INSTANCES, "instance"),
            "too slow {{instance}}": rate("nereid_slow_client_timeouts", INSTANCES, "instance"),
        },
        "cps",
        about="Connections and streams that were ended.",
    ),
    Panel(
        "Requests of tokens",
        {"{{token}} {{outcome}}": rate("nereid_token_requests", INSTANCES, "token, outcome")},
    ),
    Panel(
        "Certificates expire in",
        {
            "{{front}} {{instance}}": "min by (front, instance) "
            f"(nereid_certificate_expiry_timestamp_seconds{{{INSTANCES}}}) - time()"
        },
        "s",
        "stat",
    ),
)
