"""A recorded request and what it was answered with."""

from math import prod
from typing import Any, Final

import msgspec
import numpy as np

from nereid_client.datatypes import NUMPY

KEPT: Final = "kept"
"""The state of a tensor all bytes of which were recorded."""
SIZE: Final = "size"
"""That of a tensor of which only the size was recorded, as of texts that nobody has named."""
HASH: Final = "hash"
"""That of a tensor of which hashes were recorded, 16 bytes: of each element of BYTES, else of all numbers."""
OMITTED: Final = "omitted"
"""That of a tensor that could not be recorded: too large, or in a GPU's memory."""

REDACTED: Final = "redacted"
TRUNCATED: Final = "truncated"
CANCELLED: Final = "cancelled"
PARAMETERS: Final = "parameters"
"""The flag of a row that lacks parameters of the request."""
NO_REPLAY: Final = "no-replay"
"""That of a row of a model with side effects (`replay: never`)."""

Value = bool | int | float | str
ParameterTypes = dict[str, Value]


class TapeError(ValueError):
    """A tape, or what is asked of it, cannot be read."""


class TapeTensor(msgspec.Struct, frozen=True, gc=False):
    """A tensor of a recorded request or response.

    Attributes:
        data: its bytes as on the wire: row-major, little-endian, elements of BYTES after their length. Empty
            unless `state` is `kept`, or `hash`.
        nbytes: how many bytes it had.
        state: `kept`, `size`, `hash` or `omitted`.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any = b""
    nbytes: int = 0
    state: str = KEPT

    def array(self) -> np.ndarray[Any, Any]:
        """Return the values: a view, but for BYTES (objects of `bytes`) and BF16 (converted to float32).

        Raises:
            TapeError: they were not kept, or the bytes do not fit datatype and shape.
        """
        if self.state != KEPT:
            raise TapeError(f"the tape does not have the values of '{self.name}' ({self.state})")
        dtype = NUMPY.get(self.datatype)
        if dtype is None or any(size < 0 for size in self.shape):
            raise TapeError(f"'{self.name}' has no known datatype and shape: {self.datatype} {self.shape}")
        try:
            if self.datatype == "BYTES":
                return _objects(elements(self.data), self.shape)
            if self.datatype == "BF16":
                wide = np.frombuffer(self.data, "<u2").astype("<u4") << 16
                return wide.view("<f4").reshape(self.shape)
            return np.frombuffer(self.data, dtype).reshape(self.shape)
        except ValueError as error:
            raise TapeError(
                f"the bytes of '{self.name}' are no {self.datatype} {self.shape}: {error}"
            ) from None


def elements(data: Any) -> list[bytes]:
    """Return the elements of a BYTES tensor.

    Raises:
        ValueError: the lengths before the elements do not fit the bytes.
    """
    view = memoryview(data).cast("B")
    found, at, end = [], 0, len(view)
    while at < end:
        size = int.from_bytes(view[at : at + 4], "little")
        at += 4 + size
        if at > end:
            raise ValueError("an element ends behind the tensor's bytes")
        found.append(bytes(view[at - size : at]))
    return found


def _objects(found: list[bytes], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if len(found) != prod(shape):
        raise ValueError(f"there are {len(found)} elements")
    array = np.empty(len(found), object)
    array[:] = found
    return array.reshape(shape)


class TapeResponse(msgspec.Struct, frozen=True, gc=False):
    """One response to a recorded request.

    Attributes:
        offset_ns: when it came, after the request's arrival.
        code: of a failure, by gRPC's name (`INVALID_ARG` and so on as the server has them); "" for none.
        error: the text of a failure.
        final: no other came after it.
    """

    offset_ns: int
    outputs: tuple[TapeTensor, ...] = ()
    code: str = ""
    error: str = ""
    final: bool = False


class Row(msgspec.Struct, frozen=True, gc=False):
    """A recorded request with its responses.

    Attributes:
        arrived_ns: when it arrived, since the epoch (`time.time_ns`).
        monotonic_ns: the same on its ingress's `time.monotonic_ns`, for differences of times.
        ingress: names the process that recorded it, anew for each start.
        number: of the row there, from 1.
        asked_version: what the client named; "" for none.
        version: the version that answered; "" if none did.
        token: the name of the client's token; "" for none.
        requested: names of the outputs that were asked for; empty for all.
        parameters: those that the model's `tape.yaml` lists.
        reason: why it was recorded: `rate` (chosen at random), `sequence` (chosen with all of its sequence),
            `error` or `slow`.
        probability: with which it was recorded; a row stands for 1 / probability such requests.
        flags: of `redacted`, `truncated`, `omitted`, `cancelled`, `parameters` and `no-replay`.
    """

    arrived_ns: int
    monotonic_ns: int
    ingress: str
    number: int
    model: str
    asked_version: str = ""
    version: str = ""
    id: str = ""
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    token: str = ""
    requested: tuple[str, ...] = ()
    parameters: ParameterTypes = {}
    inputs: tuple[TapeTensor, ...] = ()
    responses: tuple[TapeResponse, ...] = ()
    reason: str = "rate"
    probability: float = 1.0
    flags: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What names this row and no other: the clients' ids need not differ."""
        return f"{self.ingress}-{self.number}"

    @property
    def why_not(self) -> str:
        """Why it cannot be sent again as it was; "" if it can."""
        for tensor in self.inputs:
            if tensor.state != KEPT:
                return f"input '{tensor.name}' was not kept ({tensor.state})"
        if NO_REPLAY in self.flags:
            return "the model's tape.yaml says `replay: never`"
        return "a parameter was not kept" if PARAMETERS in self.flags else ""

    @property
    def replayable(self) -> bool:
        """Whether it can be sent again as it was."""
        return not self.why_not

    @property
    def latency_ns(self) -> int:
        """From its arrival to its last response; 0 without any."""
        return self.responses[-1].offset_ns if self.responses else 0

    @property
    def failed(self) -> bool:
        """Whether a response is a failure."""
        return any(response.code for response in self.responses)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors that were recorded."""
        tensors = (*self.inputs, *(tensor for each in self.responses for tensor in each.outputs))
        return sum(tensor.nbytes if tensor.state == KEPT else len(tensor.data) for tensor in tensors)
