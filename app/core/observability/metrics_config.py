"""`--metrics-config`: the kinds of metrics that `/metrics` reports."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

_QUANTILES: Final = "0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001"
_LEADING_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_BOOLEANS: Final[Mapping[str, bool]] = {
    "true": True, "on": True, "1": True, "false": False, "off": False, "0": False
}  # fmt: skip


class MetricsConfig(msgspec.Struct, frozen=True):
    """The kinds of metrics to report besides gauges.

    As in Triton, `counters` is for all of its counters, not only those of latencies.
    """

    counters: bool = True
    summaries: bool = False
    histograms: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)


def parse_metrics_config(settings: Mapping[str, str]) -> MetricsConfig:
    """Read the values by name; unknown names are ignored, as in Triton.

    Raises:
        ValueError: an invalid value, described in one line.
    """
    return MetricsConfig(
        _flag(settings, "counter_latencies", "true"),
        _flag(settings, "summary_latencies", "false"),
        _flag(settings, "histogram_latencies", "false"),
        _quantiles(settings.get("summary_quantiles", _QUANTILES)),
    )


def _flag(settings: Mapping[str, str], name: str, default: str) -> bool:
    value = _BOOLEANS.get(settings.get(name, default).lower())
    if value is None:
        raise ValueError(f"--metrics-config {name}: expected true or false, got '{settings[name]}'")
    return value


def _quantiles(text: str) -> tuple[float, ...]:
    """Read the quantiles of `quantile:error,...`; the error is ignored: ours is always 1% of the value."""
    try:
        pairs = [tuple(map(_number, pair.split(":"))) for pair in text.split(",")]
    except ValueError:
        pairs = []
    if not pairs or any(len(pair) != 2 or not 0 <= pair[0] <= 1 for pair in pairs):
        raise ValueError(f"--metrics-config summary_quantiles: expected quantile:error pairs, got '{text}'")
    return tuple(pair[0] for pair in pairs)


def _number(text: str) -> float:
    """Read a number as C++'s std::stod does: text after it is ignored."""
    match = _LEADING_NUMBER.match(text)
    if match is None:
        raise ValueError(text)
    return float(match[0])
