"""The tap: what sees the requests of clients and their answers, of each version of a routing table."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from app.core.inference import Call, Sink, Target
from app.core.tape.redaction import Redaction
from app.core.tape.spec import TapeSpec
from app.core.tensors import InferRequest, InferResponse
from app.routing.table import VersionEntry
from app.tape.recording import Recorder, Tapped
from app.tape.taken import Rules

logger = logging.getLogger(__name__)

Take = Callable[[InferRequest, InferResponse], None]
"""Is given a request and each of its responses, on the event loop, before the client has it."""
Consumer = Callable[[VersionEntry], Take | None]
"""Returns what takes the requests of a version; None where it wants none of them."""


class RequestTap:
    """The `Tap` of a router: whoever wants the requests of a version stands in front of its target.

    Args:
        recorder: records requests; None records none.
        rate: share of the requests that are recorded of models whose `tape.yaml` names none, or that have no
            such file; with 0 those without are not recorded.
        key: of the hashes of values.

    Attributes:
        consumers: asked for each version once with each routing table.
    """

    def __init__(self, recorder: Recorder | None = None, rate: float = 0.0, key: bytes = b"") -> None:
        self._recorder, self._rate, self._key = recorder, rate, key
        self.consumers: list[Consumer] = []

    def __call__(self, entry: VersionEntry, target: Target) -> Target:
        """Return what takes the place of a target: the target itself where nobody wants its requests."""
        takes = [take for consumer in self.consumers if (take := consumer(entry)) is not None]
        if takes:
            target = _Fed(target, takes)
        spec = None if self._recorder is None else self._spec(entry)
        if spec is None or self._recorder is None:
            return target
        rules = Rules(entry.model, spec, Redaction(spec, self._key))
        return Tapped(self._recorder, rules, entry.decoupled, target)

    def _spec(self, entry: VersionEntry) -> TapeSpec | None:
        """Return what is recorded of a version, with its rate; None for nothing."""
        spec = entry.tape
        if spec is None:
            return TapeSpec(rate=self._rate) if self._rate else None
        if spec.rate is None:
            spec = replace(spec, rate=self._rate)
        return spec if spec.rate or spec.errors or spec.slow else None


class _Fed:
    """A target whose requests consumers see."""

    __slots__ = ("_takes", "_target")

    def __init__(self, target: Target, takes: Sequence[Take]) -> None:
        self._target, self._takes = target, takes

    @property
    def available(self) -> bool:
        """As `Target.available`."""
        return self._target.available

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        if request.chain:
            return self._target.submit(request, sink)
        return self._target.submit(request, partial(self._deliver, request, sink))

    def _deliver(self, request: InferRequest, sink: Sink, response: InferResponse) -> None:
        try:
            for take in self._takes:
                take(request, response)
        except Exception:
            logger.exception("a request was answered, and not counted")
        sink(response)
