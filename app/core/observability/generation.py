"""What an ingress counts of texts that models generate for OpenAI's clients."""

from typing import Final, NamedTuple

from app.core.observability.latencies import Histogram

PER_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Bounds of OpenTelemetry's gen_ai.server.time_per_output_token."""
REQUEST: Final = tuple(0.01 * 2**power for power in range(14))
"""Those of gen_ai.server.request.duration."""
FIRST_TOKEN: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
"""Those of vLLM's backend."""
_MAX_MODELS: Final = 4096
"""Versions and operations that are counted; of more, nothing is."""


class Operation(NamedTuple):
    """What is counted together; `operation` is OpenTelemetry's: chat, text_completion, embeddings."""

    model: str
    version: str
    operation: str


class Times(NamedTuple):
    """When a request began, had its first response and was answered, in `time.monotonic` seconds."""

    begun: float
    first: float
    ended: float


class Tokens(NamedTuple):
    """Tokens of a request: of prompts, of texts, of prompts out of a cache."""

    input: int = 0
    output: int = 0
    cached: int = 0


class Generated:
    """The figures of one operation of one version."""

    def __init__(self) -> None:
        self.first_token = _empty(FIRST_TOKEN)
        self.per_token = _empty(PER_TOKEN)
        self.request = _empty(REQUEST)
        self.tokens = Tokens()

    def count(self, times: Times, tokens: Tokens, streamed: bool) -> None:
        """Count an answered request; of one in one piece nobody knows when its tokens came."""
        self.request.observe(times.ended - times.begun)
        if streamed:
            self.first_token.observe(times.first - times.begun)
            if tokens.output > 1:
                self.per_token.observe((times.ended - times.first) / (tokens.output - 1))
        self.tokens = Tokens(*(mine + more for mine, more in zip(self.tokens, tokens, strict=True)))


class GenerationFigures(dict[Operation, Generated]):
    """The figures of a process."""

    def of(self, operation: Operation) -> Generated:
        """Return the figures of an operation, to count by."""
        found = self.get(operation)
        if found is None:
            found = Generated()
            if len(self) < _MAX_MODELS:
                self[operation] = found
        return found


def _empty(bounds: tuple[float, ...]) -> Histogram:
    return Histogram(bounds, [0] * (len(bounds) + 1))
