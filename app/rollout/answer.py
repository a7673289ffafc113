"""Judges what a version has answered by what its configuration promises."""

from collections.abc import Iterator
from math import prod
from typing import Final

from app.core.config.model_config import WILDCARD, TensorSpec
from app.core.errors import ErrorCode, Failure
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.routing.table import VersionEntry

_MOST_HELD: Final = 2


class Answer:
    """All responses to one request, of which the last is final.

    Elsewhere, as in tritonserver, nobody looks at outputs that are missing or other than the configuration
    says: clients of a version that serves alone get them.

    Attributes:
        failure: the first reason why the request has failed; None so far.
        held: the first responses before the final one; none of a decoupled version.
    """

    __slots__ = ("_missing", "_request", "_responses", "failure", "held")

    def __init__(self, request: InferRequest) -> None:
        self._request = request
        self._responses = 0
        self._missing: set[str] | None = None
        self.failure: Failure | None = None
        self.held: list[InferResponse] = []

    def add(self, entry: VersionEntry, response: InferResponse) -> Failure | None:
        """Receive a response of a version; return why the request has failed, None if it has not so far."""
        self._responses += not response.is_end_of_stream
        if not (response.final or entry.decoupled) and len(self.held) < _MOST_HELD:
            self.held.append(response)
        if self.failure is None:
            why = response.failure or next(self._faults(entry, response), None)
            if isinstance(why, str):
                why = Failure(ErrorCode.INTERNAL, f"model '{entry.model}' version {entry.version}: {why}")
            self.failure = why
        return self.failure

    def outputs(self, final: InferResponse) -> tuple[Tensor, ...]:
        """Return the outputs of a version with one response, which may come before an empty final one."""
        return self.held[0].outputs if self.held and final.is_end_of_stream else final.outputs

    def _faults(self, entry: VersionEntry, response: InferResponse) -> Iterator[str]:
        if self._missing is None:
            self._missing = {output.name for output in self._request.outputs} or set(entry.outputs)
        names = [tensor.name for tensor in response.outputs]
        self._missing.difference_update(names)
        if len(set(names)) < len(names):
            yield f"an output came twice: {', '.join(sorted(names))}"
        for tensor in response.outputs:
            spec = entry.outputs.get(tensor.name)
            if spec is None or tensor.datatype != spec.datatype or not _fits(tensor, spec):
                kind = f"{tensor.datatype} {tensor.shape}"
                yield f"output '{tensor.name}' is not in its configuration as {kind}"
            elif not (self._request.regions or _is_whole(tensor, spec)):
                yield f"output '{tensor.name}' has {len(tensor.data)} bytes, which is not {tensor.shape}"
            elif entry.batched and not entry.decoupled and tensor.shape[0] != (rows := self._rows(tensor)):
                yield f"output '{tensor.name}' has {tensor.shape[0]} rows, but the request has {rows}"
        if self._responses > 1 and not entry.decoupled:
            yield f"expected a single response, got {self._responses}"
        if response.final and self._missing:
            yield f"it answered without output {', '.join(map(repr, sorted(self._missing)))}"

    def _rows(self, tensor: Tensor) -> int:
        """Return the batch size of the request; without inputs that of the output."""
        inputs = self._request.inputs
        return inputs[0].shape[0] if inputs and inputs[0].shape else tensor.shape[0]


def _fits(tensor: Tensor, spec: TensorSpec) -> bool:
    dims = zip(tensor.shape, spec.shape, strict=False)
    return len(tensor.shape) == len(spec.shape) and all(dim in (WILDCARD, size) for size, dim in dims)


def _is_whole(tensor: Tensor, spec: TensorSpec) -> bool:
    return not spec.itemsize or len(tensor.data) == spec.itemsize * prod(tensor.shape)
