"""All requests of a run in the JSON that perf_analyzer writes with `--profile-export-file`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nereid_client.tools.perf import figures
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.result import Seen


def profile(levels: Sequence[Seen], version: str, epoch_ns: int) -> dict[str, Any]:
    """Return the document; its times are nanoseconds since 1970.

    A request's timestamp is when it was to begin; without a stream it has one response. Requests that failed
    are left out, and so is what requests and responses carry.

    Args:
        version: of the server, for lack of perf_analyzer's.
        epoch_ns: when the clock of the records was at 0.
    """
    return {
        "experiments": [_experiment(seen, epoch_ns) for seen in levels],
        "version": version,
        "service_kind": "triton",
        "endpoint": "",
    }


def _experiment(seen: Seen, epoch_ns: int) -> dict[str, Any]:
    bounds = np.array([seen.start, *(window.end for window in seen.windows)]) + epoch_ns
    return {
        "experiment": _mode(seen.level),
        "requests": [
            {
                "timestamp": begun + epoch_ns,
                "request_inputs": {},
                "response_timestamps": (responses + epoch_ns).tolist(),
                "response_outputs": [],
            }
            for begun, responses in figures.response_moments(seen.rows, seen.moments, seen.start, seen.end)
        ],
        "window_boundaries": bounds.tolist(),
    }


def _mode(level: Level) -> dict[str, Any]:
    if level.kind == "concurrency":
        return {"mode": "concurrency", "value": int(level.value)}
    return {"mode": "request_rate", "value": level.value}
