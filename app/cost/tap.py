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
    """

    def __init__(self, client: Callable[[], Named | None] = _nobody) -> None:
        self.client = client
        self._counts: dict[_Key, CallUse] = {}
        self._quick: list[dict[str, CallUse]] = []

    def __call__(self, entry: VersionEntry, target: Target) -> Target:
        """Return what counts the requests of a version."""
        return CountedTarget(entry, target, self)

    def take(self) -> list[CallUse]:
        """Return what was counted since the last time."""
        taken, self._counts = self._counts, {}
        for quick in self._quick:
            quick.clear()
        self._quick.clear()
        return list(taken.values())

    def counts(self, client: str, caller: str, entry: VersionEntry) -> CallUse:
        """Return what is counted of the requests of a client, or of a model that calls, to a version."""
        key = client, caller, entry.name, entry.version
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= MOST and client != OTHER:
                return self.counts(OTHER, "", entry)
            found = self._counts[key] = CallUse(entry.name, entry.version, client, caller)
        return found

    def keep(self, quick: dict[str, CallUse]) -> None:
        """Empty a dictionary of such counts when they are taken."""
        self._quick.append(quick)


class CountedTarget:
    """A version whose requests are counted once they have been answered.

    Args:
        entry: of the version.
        target: answers the requests.
        tap: counts.
    """

    __slots__ = ("_batched", "_client", "_entry", "_quick", "_submit", "_tap", "_target", "_weigh")

    def __init__(self, entry: VersionEntry, target: Target, tap: CostTap) -> None:
        self._entry, self._target, self._tap = entry, target, tap
        self._submit, self._client = target.submit, tap.client
        self._batched = entry.batched
        self._weigh = weigher(entry.model_config)
        self._quick: dict[str, CallUse] = {}  # of requests of clients, where one version alone may answer

    @property
    def available(self) -> bool:
        """As `Target.available`."""
        return self._target.available

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        # Further steps of an ensemble are submitted by the sink of one before, whoever has called that.
        if request.chain:
            sink = partial(_in_context, copy_context(), sink)
        client = self._client()
        name = "" if client is None else client.name
        return self._submit(request, partial(self._receive, name, request, sink))

    def _receive(self, client: str, request: InferRequest, sink: Sink, response: InferResponse) -> None:
        if response.final and response.failure is None:
            chain, inputs = request.chain, request.inputs
            found = None if chain else self._quick.get(client)
            if found is None:
                found = self._counts(client, chain, response)
            rows = inputs[0].shape[0] if self._batched and inputs and inputs[0].shape else 1
            found.requests += 1
            found.rows += rows
            found.weight += rows if self._weigh is None else self._weigh(inputs)
            if not chain:  # what steps of ensembles and models send each other is not the client's
                for tensor in inputs:
                    found.bytes_in += len(tensor.data)
                for tensor in response.outputs:
                    found.bytes_out += len(tensor.data)
        sink(response)

    def _counts(self, client: str, chain: tuple[str, ...], response: InferResponse) -> CallUse:
        entry = self._entry.answering(response.model_version)
        found = self._tap.counts(client, chain[0] if chain and not client else "", entry)
        if not chain and self._entry.rival is None:
            if not self._quick:
                self._tap.keep(self._quick)
            self._quick[client] = found
        return found


def _in_context(context: Context, sink: Sink, response: InferResponse) -> None:
    context.run(sink, response)


def weigher(config: mc.ModelConfig) -> Callable[[tuple[Tensor, ...]], float] | None:
    """Return what weighs requests of a model by their inputs; None where rows are counted."""
    kind = config.parameters[WEIGHT].string_value if WEIGHT in config.parameters else ""
    return {"bytes": _bytes, "elements": _elements}.get(kind)


def _bytes(inputs: tuple[Tensor, ...]) -> float:
    return sum(len(tensor.data) for tensor in inputs)


def _elements(inputs: tuple[Tensor, ...]) -> float:
    return sum(prod(tensor.shape) for tensor in inputs)
