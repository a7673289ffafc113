"""Tensors, requests and responses: the values that the parts of the server exchange.

A tensor holds its wire bytes, not an array: an ingress passes them on untouched, and only backends, the JSON
codec and classification view them as numpy.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from app.core.datatypes import DATATYPES, datatype_of, pack_bytes, unpack_bytes, unpack_text
from app.core.datatypes import Buffer as Buffer
from app.core.errors import Failure, invalid_arg

ParameterValue = bool | int | float | str
Parameters = dict[str, ParameterValue]
SequenceId = int | str

_NUMERIC: Final = {name: row.dtype for name, row in DATATYPES.items() if name != "BYTES"}
SMALL: Final = 2048
"""Bytes up to which `flat_bytes` copies an array, because that costs less than a view of it."""


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """A named tensor.

    `data` is contiguous, row-major and little-endian; BYTES elements are length-prefixed (`pack_bytes`).
    `len(data)` agrees with datatype and shape once the request was validated by the replica.
    `data` may be a view of shared memory: it stays valid as long as a reference to it lives.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any

    def array(self) -> npt.NDArray[Any]:
        """View the data as numpy, without a copy except for BYTES (an object array of `bytes`).

        Raises:
            InferError: INVALID_ARG when a BYTES tensor's prefixes or element count are wrong.
            ValueError: when the byte count does not fit the shape.
        """
        dtype = _NUMERIC.get(self.datatype)
        if dtype is None:
            return object_array(unpack_bytes(self.data, prod(self.shape)), self.shape)
        # Not np.ndarray(buffer=...): its base is the memory's first owner, not the view that keeps a slab of
        # shared memory in use.
        return np.frombuffer(self.data, dtype).reshape(self.shape)

    def text_array(self) -> npt.NDArray[Any]:
        """Return the elements of a BYTES tensor as an object array of `str`.

        Raises:
            InferError: INVALID_ARG as `array`, and where an element is no UTF-8.
        """
        try:
            return object_array(unpack_text(self.data, prod(self.shape)), self.shape)
        except UnicodeDecodeError as error:
            raise invalid_arg(
                f"a string element of input '{self.name}' is not valid UTF-8: {error}"
            ) from None

    @classmethod
    def from_array(cls, name: str, array: npt.NDArray[Any], datatype: str = "") -> "Tensor":
        """Wrap an array; contiguous numeric arrays are viewed, others copied once.

        Args:
            name: tensor name.
            array: any shape; object, `S` and `U` dtypes become BYTES.
            datatype: v2 name to use instead of the dtype's own (BF16 for uint16 patterns).
        """
        name_of_type = datatype or datatype_of(array)
        if name_of_type == "BYTES":
            return cls(name, "BYTES", array.shape, pack_bytes(array.ravel().tolist()))
        flat = np.ascontiguousarray(array).reshape(-1)
        return cls(name, name_of_type, array.shape, flat.view(np.uint8).data)


def object_array(elements: Sequence[object], shape: Sequence[int]) -> npt.NDArray[Any]:
    """Return an array of these objects."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def flat_bytes(array: npt.NDArray[Any]) -> memoryview | bytes:
    """View the bytes of a numeric array; copied first only when it is small, or not contiguous."""
    if array.nbytes <= SMALL:
        return array.tobytes()
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.data.cast("B")


class RegionSlice(msgspec.Struct, frozen=True, gc=False):
    """A part of the memory that a client shares: a tensor's `data`, or the target of an output.

    A codec sets `region`, the registered name, and `offset`, bytes from the region's start. The ingress's
    registry replaces these by a place in the file /dev/shm/`key` whose inode is `inode`, or in the GPU
    allocation of the CUDA IPC `handle` on `device`; `offset` then counts from the start of either.
    """

    region: str
    offset: int
    nbytes: int
    key: str = ""
    inode: int = 0
    handle: bytes = b""
    device: int = 0

    def __len__(self) -> int:
        return self.nbytes


class RequestedOutput(msgspec.Struct, frozen=True, gc=False):
    """One entry of a request's `outputs`.

    Only the ingress uses `binary` and `classification`; `binary` is None when the request's
    `binary_data_output` (or the protocol's default) decides. An output with a `region` is written there, and
    the response has it without data.
    """

    name: str
    binary: bool | None = None
    classification: int = 0
    region: RegionSlice | None = None


class RolloutHint(msgspec.Struct, frozen=True, gc=False):
    """Facts of a request, beside itself, by which one of the two versions of a rollout is chosen.

    Attributes:
        version: `candidate` or `stable` if a header says so; "" otherwise.
        key: requests with the same key get the same version; "" for none.
    """

    version: str = ""
    key: str = ""


class InferRequest(msgspec.Struct, frozen=True, gc=False):
    """One inference request, decoded once at the edge.

    Attributes:
        model_version: "" when the version policy decides.
        outputs: empty for all outputs.
        parameters: custom parameters only; the reserved ones have fields of their own.
        timeout_us: the schedule policy's `timeout`.
        trace: "" for an ordinary request. Otherwise the replica returns timestamps: a W3C `traceparent`,
            `UNNAMED_TRACE` where there is none, or `TENSORS_TRACE` to return tensors of nested calls too.
        regions: an input or an output is in shared memory of the client.
        chain: the models whose calls this request is part of, the outermost first.
        mirrored: it repeats a client's request, for a rollout to compare the responses: nobody waits for it.
        deadline: the transport's, in `time.monotonic` seconds; 0 for none.
        rollout: only for the process that sends the request; never sent.
    """

    model_name: str
    model_version: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    id: str = ""
    parameters: Parameters = {}
    sequence_id: SequenceId = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    trace: str = ""
    regions: bool = False
    chain: tuple[str, ...] = ()
    mirrored: bool = False
    deadline: float = 0.0
    rollout: RolloutHint | None = None


UNNAMED_TRACE = "-"
TENSORS_TRACE = "+"


class Timestamps(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Times of one request in a replica: `time.monotonic_ns` of its machine, 0 where unknown.

    `activities` are the names and times that the model's backend has reported, in that order.
    """

    request_start: int = 0
    queue_start: int = 0
    compute_start: int = 0
    compute_input_end: int = 0
    compute_output_start: int = 0
    compute_end: int = 0
    request_end: int = 0
    activities: tuple[tuple[str, int], ...] = ()


class TracedCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call nested in a traced request: a step of an ensemble, or a call by a model (BLS).

    `timestamps`, and those of `calls`, which are nested in this call, are on the caller's clock. `inputs` and
    `outputs`, of all its responses, are there if requested (`TENSORS_TRACE`); beyond the trace's limit, and
    in a client's shared memory, they are without data.
    """

    model_name: str
    model_version: str
    request_id: str
    timestamps: Timestamps
    calls: tuple["TracedCall", ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()


class InferResponse(msgspec.Struct, frozen=True, gc=False):
    """One response. A request has exactly one final response; a decoupled model may send others before it.

    A failed response carries `failure` and no outputs; it names no model if the request was refused, and the
    model if that was queued or executed. A decoupled model's last response may be empty.
    The final response of a traced request has its `timestamps` and the `calls` nested in it.
    """

    model_name: str = ""
    model_version: str = ""
    outputs: tuple[Tensor, ...] = ()
    id: str = ""
    parameters: Parameters = {}
    final: bool = True
    failure: Failure | None = None
    timestamps: Timestamps | None = None
    calls: tuple[TracedCall, ...] = ()

    @property
    def is_end_of_stream(self) -> bool:
        """Whether it is empty but for being final, as the last response of a decoupled model may be."""
        return self.final and not (self.failure is not None or self.outputs or self.parameters)

    def raise_error(self) -> None:
        """Raise the error of a failed response.

        Raises:
            InferError: of this failure's code, message and reason.
        """
        if self.failure is not None:
            raise self.failure.error()


def failed(cause: Failure | BaseException, request_id: str = "", final: bool = True) -> InferResponse:
    """Return the response of a request that failed; see `Failure.from_exception`."""
    failure = cause if isinstance(cause, Failure) else Failure.from_exception(cause)
    return InferResponse(id=request_id, final=final, failure=failure)
