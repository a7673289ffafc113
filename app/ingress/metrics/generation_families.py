"""The metric families of texts that models generate for OpenAI's clients."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.samples import Sample

from app.core.observability.generation import Generated
from app.ingress.metrics.family import Family, Labels, histogram


def _by_direction(name: str, labels: Labels, source: Generated) -> Iterator[Sample]:
    for direction, count in source.tokens._asdict().items():
        yield Sample(name, dict(sorted({**labels, "direction": direction}.items())), count)


GENERATION: Final[tuple[Family[Generated], ...]] = (
    Family(
        "nereid_generation_first_token_seconds",
        "histogram",
        "Time to the first piece of a streamed text in seconds",
        histogram(lambda source: source.first_token),
    ),
    Family(
        "nereid_generation_time_per_output_token_seconds",
        "histogram",
        "Time for each further token of a streamed text in seconds, where the model counts tokens",
        histogram(lambda source: source.per_token),
    ),
    Family(
        "nereid_generation_request_seconds",
        "histogram",
        "Time to answer a request of OpenAI's API in seconds",
        histogram(lambda source: source.request),
    ),
    Family(
        "nereid_generation_tokens",
        "counter",
        "Tokens that models have counted, by direction: input, output, and input out of a cache (cached)",
        _by_direction,
    ),
)
