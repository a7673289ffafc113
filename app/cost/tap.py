"""Counts the requests of each client, by the version that has answered."""

from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from math import prod
from typing import Final, Protocol

from tritonclient.grpc import model_config_pb2 as mc

from app.core.cost.reports import CallUse
from app.core.inference import Call, Sink, Target
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.routing.table import VersionEntry

WEIGHT: Final = "cost_weight"
"""The parameter of a model by which its cost is divided: `rows`, `bytes` or `elements`."""
_Key = tuple[str, str, str, int]
"""Client, caller, model and version."""

MOST: Final = 1000
"""Clients times versions that are counted between two reports; further clients are counted together."""
OTHER: Final = "other"


class Named(Protocol):
    """A client with a token."""

    name: str


def _nobody() -> None:
    """Return no client."""


class CostTap:
    """The `Tap` that counts what clients are answered. Runs on the data-plane loop.

    Args:
        client: returns the client of the request that is being submitted; None for nobody named.
        compiled: C counts most requests (`CountedSubmit`).
    """

    def __init__(self, client: Callable[[], Named | None] = _nobody, compiled: bool = False) -> None:
        self.client = client
        self._compiled = compiled
        self._counts: dict[_Key, Counts] = {}
        self._known: list[dict[str, bytearray]] = []

    def __call__(self, entry: VersionEntry, target: Target) -> Target:
        """Return what counts the requests of a version."""
        counted = CountedTarget(entry, target, self)
        if self._compiled:
            counted.use_compiled()
        return counted

    def take(self) -> list[CallUse]:
        """Return what was counted since the last time."""
        taken, self._counts = self._counts, {}
        for known in self._known:
            known.clear()
        self._known.clear()
        return [CallUse(key[2], key[3], key[0], key[1], *counts.figures()) for key, counts in taken.items()]

    def counts(self, client: str, caller: str, entry: VersionEntry) -> "Counts":
        """Return what is counted of the requests of a client, or of a model that calls, to a version."""
        key = client, caller, entry.name, entry.version
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= MOST and client != OTHER:
                return self.counts(OTHER, "", entry)
            found = self._counts[key] = Counts()
        return found

    def forget(self, known: dict[str, bytearray]) -> None:
        """Empty a dictionary of what C counts into when it is taken."""
        self._known.append(known)


class Counts:
    """What is counted of some requests.

    Attributes:
        numbers: requests, rows, bytes of inputs and bytes of outputs, as C adds to them: 64 bits each.
    """

    __slots__ = ("_view", "_weight", "numbers")

    def __init__(self) -> None:
        self.numbers = bytearray(32)
        self._view = memoryview(self.numbers).cast("q")
        self._weight = 0.0

    def add(self, rows: int, bytes_in: int, bytes_out: int, weight: float | None) -> None:
        """Count the answer to a request; without a weight it has that of its rows."""
        view = self._view
        view[0] += 1
        view[1] += rows
        view[2] += bytes_in
        view[3] += bytes_out
        if weight is not None:
            self._weight += weight - rows

    def figures(self) -> tuple[int, int, float, int, int]:
        """Return requests, rows, weight and bytes."""
        requests, rows, bytes_in, bytes_out = self._view
        return requests, rows, rows + self._weight, bytes_in, bytes_out


class CountedTarget:
    """A version whose requests are counted once they have been answered.

    Args:
        entry: of the version.
        target: answers the requests.
        tap: counts.

    Attributes:
        submit: as `Target.submit`.
    """

    __slots__ = ("_entry", "_known", "_tap", "_target", "_weigh", "submit")

    def __init__(self, entry: VersionEntry, target: Target, tap: CostTap) -> None:
        self._entry, self._target, self._tap = entry, target, tap
        self._weigh = weigher(entry.model_config)
        self._known: dict[str, bytearray] | None = None
        self.submit: Callable[[InferRequest, Sink], Call] = self._submit

    def use_compiled(self) -> None:
        """Have C count the requests of clients where one version alone answers, by their rows."""
        if self._weigh is None and self._entry.rival is None:
            from app.native.extension import CountedSubmit

            self._known = known = dict[str, bytearray]()
            self.submit = CountedSubmit(
                (InferRequest, InferResponse, Tensor),
                self._target.submit,
                self._tap.client,
                self._submit,
                self._receive,
                known,
                self._entry.batched,
            )

    @property
    def available(self) -> bool:
        """As `Target.available`."""
        return self._target.available

    def _submit(self, request: InferRequest, sink: Sink) -> Call:
        # Further steps of an ensemble are submitted by the sink of one before, whoever has called that.
        if request.chain:
            sink = partial(_in_context, copy_context(), sink)
        client = self._tap.client()
        name = "" if client is None else client.name
        return self._target.submit(request, partial(self._receive, name, request, sink))

    def _receive(self, client: str, request: InferRequest, sink: Sink, response: InferResponse) -> None:
        if response.final and response.failure is None:
            self._count(client, request, response)
        sink(response)

    def _count(self, client: str, request: InferRequest, response: InferResponse) -> None:
        chain, inputs = request.chain, request.inputs
        entry = self._entry.answering(response.model_version)
        counts = self._tap.counts(client, chain[0] if chain and not client else "", entry)
        rows = inputs[0].shape[0] if entry.batched and inputs and inputs[0].shape else 1
        weight = None if self._weigh is None else self._weigh(inputs)
        # What steps of ensembles and models send each other is not the client's.
        sizes = (0, 0) if chain else (_bytes(inputs), _bytes(response.outputs))
        counts.add(rows, *sizes, weight)
        if self._known is not None and not chain:
            if not self._known:
                self._tap.forget(self._known)
            self._known[client] = counts.numbers


def _in_context(context: Context, sink: Sink, response: InferResponse) -> None:
    context.run(sink, response)


def weigher(config: mc.ModelConfig) -> Callable[[tuple[Tensor, ...]], float] | None:
    """Return what weighs requests of a model by their inputs; None where rows are counted."""
    kind = config.parameters[WEIGHT].string_value if WEIGHT in config.parameters else ""
    return {"bytes": _bytes, "elements": _elements}.get(kind)


def _bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(len(tensor.data) for tensor in tensors)


def _elements(tensors: tuple[Tensor, ...]) -> float:
    return sum(prod(tensor.shape) for tensor in tensors)
