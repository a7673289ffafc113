"""Watches the requests of models that have a reference, or rules for their inputs."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from app.core.drift.counts import KnownReference, VersionCounts
from app.core.drift.reference import VersionReference
from app.core.drift.spec import DriftSpec
from app.core.errors import InferError
from app.core.inference import Call, Sink, Target
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.drift.admission import AdmissionTally, AdmittedTarget, Rules, with_read_inputs
from app.drift.counter import RowCounter
from app.drift.sampling import Sampler
from app.routing.table import VersionEntry

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 16 << 20
"""Bytes of inputs that sampled requests in flight hold; those above are not counted."""
_DEFAULT: Final = DriftSpec()


class Counted(NamedTuple):
    """A version that is counted."""

    digest: str
    reference: VersionReference
    counter: RowCounter


class DriftTap:
    """The `Tap` that counts rows, and checks inputs. Runs on the data-plane loop.

    A model without a reference and without rules is not touched: its requests go straight to their route.

    Attributes:
        tally: of the requests that rules have found.
    """

    def __init__(self) -> None:
        self.tally = AdmissionTally()
        self._counted: dict[tuple[str, int], Counted] = {}
        self._samplers: dict[str, Sampler] = {}
        self._held = 0

    def __call__(self, entry: VersionEntry, target: Target) -> Target:
        """Return what answers the requests of a version, watched if it is to be."""
        spec = entry.drift or _DEFAULT
        versions = [entry] if entry.rival is None else [entry, entry.rival]
        if spec.rows_per_second and any((each.name, each.version) in self._counted for each in versions):
            target = CountedTarget(entry, target, self, self._sampler(entry.name, spec.rows_per_second))
        if spec.inputs:
            target = AdmittedTarget(
                target, Rules(entry.model, spec.inputs, self._references(entry)), self.tally
            )
        return target

    def _sampler(self, model: str, limit: float) -> Sampler:
        """Return what chooses the requests of a model, of all its versions together."""
        sampler = self._samplers.get(model)
        if sampler is None or sampler.limit != limit:
            sampler = self._samplers[model] = Sampler(limit, monotonic())
        return sampler

    @property
    def known(self) -> list[str]:
        """The digests of the references that are here."""
        return sorted({each.digest for each in self._counted.values()})

    def follow(self, references: Iterable[KnownReference]) -> bool:
        """Count by these references from now on, and no others; return whether anything has changed."""
        before, self._counted = self._counted, {}
        texts = {each.digest: each.reference for each in before.values()}
        for known in references:
            key = known.model, known.version
            old, reference = before.get(key), known.reference or texts.get(known.digest)
            if old is not None and old.digest == known.digest:
                self._counted[key] = old
            elif reference is not None:
                self._counted[key] = Counted(known.digest, reference, RowCounter(reference))
        models = {model for model, _ in self._counted}
        self._samplers = {model: each for model, each in self._samplers.items() if model in models}
        return {key: each.digest for key, each in before.items()} != {
            key: each.digest for key, each in self._counted.items()
        }

    def take(self) -> Iterable[VersionCounts]:
        """Yield what was counted since the last time, version by version, and count from zero."""
        for sampler in self._samplers.values():
            sampler.refresh(monotonic())
        for (model, version), each in list(self._counted.items()):
            counts = each.counter.take()
            if counts.rows:
                yield VersionCounts(model, version, each.digest, counts)

    def hold(self, request: InferRequest) -> tuple[tuple[Tensor, ...], int] | None:
        """Return the inputs of a request, and their bytes; None if they cannot be kept until its answer."""
        try:
            inputs = with_read_inputs(request).inputs
        except InferError:
            return None
        nbytes = sum(len(tensor.data) for tensor in inputs)
        if self._held + nbytes > MOST_BYTES:
            return None
        self._held += nbytes
        return inputs, nbytes

    def release(self, nbytes: int) -> None:
        """Forget the bytes of inputs that are not held any more."""
        self._held -= nbytes

    def count(self, entry: VersionEntry, row: "Sampled", response: InferResponse) -> None:
        """Count a request by the version that has answered it."""
        answered = entry.answering(response.model_version)
        found = self._counted.get((answered.name, answered.version))
        if found is None or response.failure is not None:
            return
        try:
            found.counter.add(row.inputs, row.outputs or response.outputs, row.rows, entry.batched)
        except Exception:  # the client has its answer, and others wait for theirs
            logger.exception("model '%s' is not watched any more", answered.name)
            self._counted.pop((answered.name, answered.version), None)

    def _references(self, entry: VersionEntry) -> VersionReference | None:
        found = self._counted.get((entry.name, entry.version))
        return None if found is None else found.reference


class Sampled:
    """A request in flight that is counted when it is answered."""

    __slots__ = ("inputs", "nbytes", "outputs", "rows")

    def __init__(self, inputs: tuple[Tensor, ...], nbytes: int, rows: int) -> None:
        self.inputs, self.nbytes, self.rows = inputs, nbytes, rows
        self.outputs: tuple[Tensor, ...] = ()


@dataclass(slots=True, eq=False)
class CountedTarget:
    """A version whose requests are counted, those that are sampled."""

    entry: VersionEntry
    route: Target
    tap: DriftTap
    sampler: Sampler

    @property
    def available(self) -> bool:
        """As `Target.available`."""
        return self.route.available

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        self.sampler.left -= 1
        if self.sampler.left > 0:
            return self.route.submit(request, sink)
        rows = _rows(self.entry, request)
        taken = self.sampler.take(rows, monotonic())
        held = self.tap.hold(request) if taken > 0 else None
        if held is None:
            return self.route.submit(request, sink)
        try:
            return self.route.submit(request, partial(self._receive, Sampled(*held, taken), sink))
        except BaseException:
            self.tap.release(held[1])
            raise

    def _receive(self, row: Sampled, sink: Sink, response: InferResponse) -> None:
        """Deliver a response, then count the request if that was the last one."""
        sink(response)
        if not response.final:
            if not (row.outputs or self.entry.decoupled):
                row.outputs = response.outputs
            return
        self.tap.release(row.nbytes)
        self.tap.count(self.entry, row, response)


def _rows(entry: VersionEntry, request: InferRequest) -> int:
    inputs = request.inputs
    return inputs[0].shape[0] if entry.batched and inputs and inputs[0].shape else 1
