"""The metrics of a model: families `llm:*`, with the names and units of vLLM's."""

from typing import Any, Final

import triton_python_backend_utils as pb_utils

from backends.packaged.llm.engine.state import State

_SHORT_S: Final = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_LONG_S: Final = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0]
_TOKENS: Final = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0]


class Metrics:
    """Counts of tokens and of requests, and histograms of their times.

    Attributes:
        first_token, next_token, request: seconds, to the first token, between two, and of a whole request.
        input_tokens, output_tokens: of a request.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._families: list[Any] = []  # a metric is of no use without its family
        self._before = State()
        self.prompt_tokens = self._counter("prompt_tokens_total", "Tokens of prompts.")
        self.generation_tokens = self._counter("generation_tokens_total", "Tokens generated.")
        self._queries = self._counter(
            "prefix_cache_queries_total", "Tokens of prompts that the prefix cache was asked for."
        )
        self._hits = self._counter("prefix_cache_hits_total", "Tokens of prompts that the prefix cache had.")
        self._running = self._gauge("num_requests_running", "Texts that are being generated.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for others to end.")
        self._usage = self._gauge(
            "kv_cache_usage_perc", "Tokens of running texts; 1 where all are as long as they may be."
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From a request to its first token.", _SHORT_S
        )
        self.next_token = self._histogram(
            "inter_token_latency_seconds", "From a token to the next.", _SHORT_S
        )
        self.request = self._histogram("e2e_request_latency_seconds", "From a request to its end.", _LONG_S)
        self.input_tokens = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.output_tokens = self._histogram("request_generation_tokens", "Tokens of a text.", _TOKENS)

    def _family(self, name: str, description: str, kind: int) -> Any:
        self._families.append(pb_utils.MetricFamily(f"llm:{name}", description, kind))
        return self._families[-1]

    def _counter(self, name: str, description: str) -> Any:
        return self._family(name, description, pb_utils.MetricFamily.COUNTER).Metric(self._labels)

    def _gauge(self, name: str, description: str) -> Any:
        return self._family(name, description, pb_utils.MetricFamily.GAUGE).Metric(self._labels)

    def _histogram(self, name: str, description: str, bounds: list[float]) -> Any:
        family = self._family(name, description, pb_utils.MetricFamily.HISTOGRAM)
        return family.Metric(labels=self._labels, buckets=bounds)

    def observe(self, state: State) -> None:
        """Show what an engine does now."""
        self._running.set(state.running)
        self._waiting.set(state.waiting)
        self._usage.set(state.usage)
        self._queries.increment(state.queries - self._before.queries)
        self._hits.increment(state.hits - self._before.hits)
        self._before = state
