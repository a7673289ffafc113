"""The last traces of this process, in memory: while somebody looks at them, some requests are traced for it.

Nobody has to set a trace file for that, and the trace settings count for nothing but what they are for.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from time import monotonic, monotonic_ns, time
from typing import Final

import msgspec

from app.core.observability.trace_settings import TraceSetting
from app.ingress.tracing.trace import Trace, stamps_of
from app.ingress.tracing.trace_file import Stamp

MAX_TRACES: Final = 100
_MAX_SPANS: Final = 64
_MAX_STAMPS: Final = 64
"""Of a span; those of a stream's responses beyond are left out."""
_MAX_TEXT: Final = 256
LOOKED_AT_S: Final = 5.0
"""Requests are traced for so long after each look."""
_EVERY_S: Final = 0.1
"""Between two requests that are traced for those who look."""
RING: Final = TraceSetting(level=("TIMESTAMPS",), rate=1)
"""The setting of traces that are for nothing else."""


class Span(msgspec.Struct, frozen=True):
    """A request, or a call to another model that it made.

    Attributes:
        number, parent: of the span; parent is 0 for the request.
        model, version, request_id: of the request.
        stamps: activities with their microseconds since the first of the trace.
    """

    number: int
    parent: int
    model: str
    version: str
    request_id: str
    stamps: Sequence[tuple[str, float]]


class KeptTrace(msgspec.Struct, frozen=True):
    """A trace without tensors.

    Attributes:
        number: counts up from 1.
        at: when it began, in Unix seconds.
        us: microseconds from its first activity to its last.
        spans: the request first, each before the calls that it made.
    """

    number: int
    at: float
    us: float
    spans: Sequence[Span]


class TraceRing:
    """Keeps the last traces, and says which requests are traced for it. Runs on the data-plane loop."""

    def __init__(self) -> None:
        self._kept: deque[KeptTrace] = deque(maxlen=MAX_TRACES)
        self._number = 0
        self._until = 0.0
        self._next = 0.0

    @property
    def looked_at(self) -> bool:
        """Whether somebody has looked lately."""
        return monotonic() < self._until

    def read(self, after: int = 0) -> Sequence[KeptTrace]:
        """Return the traces after the one of this number, oldest first; for some seconds more are made."""
        self._until = monotonic() + LOOKED_AT_S
        return [trace for trace in self._kept if trace.number > after]

    def sample(self) -> bool:
        """Return whether the next request is traced."""
        now = monotonic()
        if now >= self._until or now < self._next:
            return False
        self._next = now + _EVERY_S
        return True

    def add(self, trace: Trace) -> None:
        """Keep a complete trace, of whatever setting."""
        request = trace.request
        first = min((ns for _, ns in trace.stamps), default=0)
        last = max((ns for _, ns in trace.stamps), default=0)
        stamps = (*trace.stamps, *trace.activities)
        spans = [
            _span(trace.number, 0, request.model_name, trace.version, request.id, stamps, first),
            *(
                _span(
                    child.number,
                    child.parent,
                    child.call.model_name,
                    child.call.model_version,
                    child.call.request_id,
                    (*stamps_of(child.call.timestamps), *child.call.timestamps.activities),
                    first,
                )
                for child in trace.children[: _MAX_SPANS - 1]
            ),
        ]
        self._number += 1
        at = time() - (monotonic_ns() - first) / 1e9
        self._kept.append(KeptTrace(self._number, at, (last - first) / 1e3, spans))


def _span(
    number: int,
    parent: int,
    model: str,
    version: str,
    request_id: str,
    stamps: Iterable[Stamp],
    first: int,
) -> Span:
    times = [(name[:_MAX_TEXT], (ns - first) / 1e3) for name, ns in stamps]
    kept = times if len(times) <= _MAX_STAMPS else [*times[: _MAX_STAMPS // 2], *times[-_MAX_STAMPS // 2 :]]
    return Span(number, parent, model, version, request_id[:_MAX_TEXT], kept)
