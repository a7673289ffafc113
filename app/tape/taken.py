"""A request that is recorded, while it is in flight and until its row is written."""

from math import prod
from typing import Any, Final

import msgspec

from app.core.datatypes import DATATYPES
from app.core.errors import InferError
from app.core.tape.redaction import Redaction
from app.core.tape.spec import TapeSpec
from app.core.tensors import InferRequest, InferResponse, RegionSlice, Tensor
from app.transport.memory.client_regions import read_slice
from nereid_client.tape.rows import OMITTED, TRUNCATED

MAX_ROW_BYTES: Final = 16 << 20
"""Bytes of a request and its responses; what goes beyond them is left out, and a flag says so."""
MAX_RESPONSES: Final = 1024
OVERHEAD_BYTES: Final = 1024
"""What a row counts for beside its tensors."""


class Rules(msgspec.Struct, frozen=True, gc=False):
    """What a row is made by: of one model.

    Attributes:
        model: its name for clients.
        spec: its `tape.yaml`.
        redaction: by that.
    """

    model: str
    spec: TapeSpec
    redaction: Redaction


class Missing:
    """In place of a tensor's data: it was of this size, and is not recorded."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __len__(self) -> int:
        return 0


class Taken:
    """A request that is recorded, and its responses so far. Its tensors are views, not copies.

    Attributes:
        rules: of its model.
        request: the request; once it is read, with what is in memory of its client.
        arrived: `monotonic_ns` of its arrival.
        token: name of the client's token.
        responses: with their offsets in ns.
        flags: those known so far.
        nbytes: bytes that its tensors and itself keep in use.
        collected: those of its responses, while it is in flight.
        number, reason, probability: see `Row`.
        in_sequence: all of its sequence is to be recorded.
        wall_ns: ns since the epoch at which it arrived.
    """

    __slots__ = (
        "arrived",
        "collected",
        "flags",
        "in_sequence",
        "nbytes",
        "number",
        "probability",
        "reason",
        "request",
        "responses",
        "rules",
        "token",
        "wall_ns",
    )

    def __init__(self, rules: Rules, request: InferRequest, arrived: int, token: str) -> None:
        self.rules = rules
        self.arrived, self.token = arrived, token
        self.reason, self.probability, self.in_sequence = "", 1.0, False
        self.responses: list[tuple[int, InferResponse]] = []
        self.flags: set[str] = set()
        self.nbytes, self.collected = OVERHEAD_BYTES, 0
        self.wall_ns = self.number = 0
        self.request = request
        if not request.regions:
            self._bound_inputs()
        elif _overlaps(request):
            self.read_inputs()

    def read_inputs(self) -> None:
        """Read inputs in memory of the client, while it may not change them: before its final response."""
        if self.request.regions:
            request = msgspec.structs.replace(self.request, regions=False)
            inputs = tuple([self._read(tensor) for tensor in request.inputs])
            self.request = msgspec.structs.replace(request, inputs=inputs)
            self._bound_inputs()

    def _bound_inputs(self) -> None:
        """Count the bytes of the inputs; leave out what is too large."""
        request = self.request
        size = 0
        for tensor in request.inputs:
            size += len(tensor.data)
        if size > MAX_ROW_BYTES:
            self.request = msgspec.structs.replace(request, inputs=self._bounded(request.inputs))
            size = sum(len(tensor.data) for tensor in self.request.inputs)
        self.nbytes += size

    def _bounded(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        left, found = MAX_ROW_BYTES, list[Tensor]()
        for tensor in tensors:
            size = len(tensor.data)
            if size > left:
                found.append(self._omitted(tensor, size))
            else:
                found.append(tensor)
                left -= size
        return tuple(found)

    def _omitted(self, tensor: Tensor, nbytes: int) -> Tensor:
        self.flags.add(OMITTED)
        return Tensor(tensor.name, tensor.datatype, tensor.shape, Missing(nbytes))

    def _read(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its bytes, where those are in memory of the client."""
        place: Any = tensor.data
        if type(place) is not RegionSlice:
            return tensor
        if place.handle or place.nbytes > MAX_ROW_BYTES:
            return self._omitted(tensor, place.nbytes)
        if self.rules.redaction.treatment(tensor.name, tensor.datatype) in ("size", "drop"):
            return Tensor(tensor.name, tensor.datatype, tensor.shape, Missing(place.nbytes))
        try:
            return Tensor(tensor.name, tensor.datatype, tensor.shape, read_slice(place))
        except InferError:  # the client has made it shorter, or removed it: the request fails too
            return self._omitted(tensor, place.nbytes)

    def add(self, offset_ns: int, response: InferResponse, asked: InferRequest) -> int:
        """Add a response; return the bytes that it keeps in use.

        Args:
            offset_ns: after the request's arrival.
            response: the response, before its client has it.
            asked: the request as it was submitted, which says where outputs are written.
        """
        if asked.regions and response.outputs:
            response = self._with_written(response, asked)
        size = 0
        for tensor in response.outputs:
            size += len(tensor.data)
        full = len(self.responses) >= MAX_RESPONSES or self.nbytes + size > MAX_ROW_BYTES + OVERHEAD_BYTES
        if full:
            self.flags.add(TRUNCATED)
            if not response.final:
                return 0
            size, response = 0, msgspec.structs.replace(response, outputs=())
        self.responses.append((offset_ns, response))
        self.nbytes += size
        self.collected += size
        return size

    def _with_written(self, response: InferResponse, asked: InferRequest) -> InferResponse:
        """Return a response with the bytes of the outputs that were written to memory of the client."""
        places = {output.name: output.region for output in asked.outputs if output.region is not None}
        outputs = []
        for tensor in response.outputs:
            place = places.get(tensor.name)
            outputs.append(tensor if place is None else self._written(tensor, place))
        return msgspec.structs.replace(response, outputs=tuple(outputs))

    def _written(self, tensor: Tensor, place: RegionSlice) -> Tensor:
        size = prod(tensor.shape) * DATATYPES[tensor.datatype].itemsize
        is_text = tensor.datatype == "BYTES"
        used = place if is_text else msgspec.structs.replace(place, nbytes=min(size, place.nbytes))
        read = self._read(Tensor(tensor.name, tensor.datatype, tensor.shape, used))
        if not is_text or type(read.data) is Missing:
            return read
        return msgspec.structs.replace(read, data=_elements(read.data, prod(tensor.shape)))


def _elements(data: Any, count: int) -> memoryview:
    """Return the first elements of the bytes of a region, which is longer than what was written there."""
    view = memoryview(data).cast("B")
    end = 0
    for _ in range(count):
        end += 4 + int.from_bytes(view[end : end + 4], "little")
        if end >= len(view):
            break
    return view[:end]


def _overlaps(request: InferRequest) -> bool:
    """Return whether an output may be written where an input is."""
    written = {output.region.region for output in request.outputs if output.region is not None}
    return any(
        type(tensor.data) is RegionSlice and tensor.data.region in written for tensor in request.inputs
    )
