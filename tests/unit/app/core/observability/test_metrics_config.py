"""The values of `--metrics-config`."""

import pytest

from app.core.observability.metrics_config import MetricsConfig, parse_metrics_config


def test_values_are_parsed_as_in_triton() -> None:
    assert parse_metrics_config({}) == MetricsConfig()
    given = {"summary_latencies": "true", "counter_latencies": "false", "summary_quantiles": "0.2:0.1"}
    assert parse_metrics_config(given) == MetricsConfig(False, True, False, (0.2,))
    assert parse_metrics_config({"summary_quantiles": "0.1:0.0.1,.75:1e-2"}).quantiles == (0.1, 0.75)
    for wrong in ({"summary_latencies": "maybe"}, {"summary_quantiles": "2:1"}, {"summary_quantiles": "x"}):
        with pytest.raises(ValueError, match="--metrics-config"):
            parse_metrics_config(wrong)
