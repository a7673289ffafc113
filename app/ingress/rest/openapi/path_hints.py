"""Where a path leads that newcomers try, and tritonserver does not have."""

import re
from typing import Final

_HEALTH: Final = "health is at /v2/health/ready and /v2/health/live"
_TABLE: Final = (
    (r"/(v2/)?(health|healthz|ready|readyz|live|livez|ping|status)", _HEALTH),
    (
        r"/v1/(chat/completions|completions|embeddings|models|responses)",
        "the OpenAI API is not served here; a text model answers at /v2/models/<model>/generate",
    ),
    (
        r"/v1(/.*)?",
        "this server speaks v2: /v2/models/<model>/infer; --allow-tfserving answers V1 paths, "
        "/v1/models/<model>:predict",
    ),
    (
        r"/(predictions|explanations)(/.*)?",
        "--allow-torchserve answers TorchServe's paths; v2's are /v2/models/<model>/infer",
    ),
    (r"/(invocations|models/.*/invoke)", "--allow-sagemaker opens SageMaker's paths at a port of their own"),
    (r"/(v2/)?(models/[^/]+/)?predict(/.*)?", "inference is POST /v2/models/<model>/infer"),
    (r"/(infer|generate)", "inference names its model: POST /v2/models/<model>/infer"),
    (r"/models(/.*)?", "models are at /v2/models, one at /v2/models/<model>"),
    (
        r"/v2/repository(/.*)?",
        "the index is POST /v2/repository/index, a load POST /v2/repository/models/<model>/load",
    ),
    (r"/(swagger|redoc|api|v2/docs)(/.*)?", "the API is described at /docs, and at /openapi.json"),
)
_HINTS: Final = tuple((re.compile(pattern), hint) for pattern, hint in _TABLE)
_LONGEST: Final = 256


def path_hint(path: str, metrics_port: int) -> str:
    """Say where what a path without a route asks for is; "" if nobody knows.

    Args:
        path: of the request.
        metrics_port: where metrics are served; 0 if they are not, or on a port not known yet.
    """
    if len(path) > _LONGEST:
        return ""
    stripped = path.rstrip("/")
    if stripped in ("/metrics", "/v2/metrics"):
        where = f"at port {metrics_port}, path /metrics" if metrics_port else "off, or at a port of their own"
        return f"metrics are {where} (--allow-metrics, --metrics-port)"
    return next((hint for pattern, hint in _HINTS if pattern.fullmatch(stripped)), "")


def method_hint(methods: list[str], verb: str = "") -> str:
    """Say which method a path takes.

    Args:
        methods: those of its routes.
        verb: the last part of a path of inference.
    """
    body = "; GET /v2/models/<model> describes the inputs" if verb else ""
    return f"{verb or 'this path'} takes {' or '.join(methods)}{body}" if methods else ""
