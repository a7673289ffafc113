"""A request and a response, whatever the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nereid_client.datatypes import Array
from nereid_client.tensors import host_bytes

TIMEOUT: Final = 60.0
Parameter = bool | int | float | str


@dataclass(frozen=True)
class Slice:
    """A place in a registered shared memory region, in bytes."""

    region: str
    offset: int
    size: int


@dataclass(frozen=True)
class Input:
    """A tensor of a request: `data`, or its place in shared memory.

    Until it is sent, `data` may also be bytes on a GPU, as a tensor.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any


@dataclass(frozen=True)
class Output:
    """A requested output; `classes`: as many best classes instead of values; `place`: where to put it."""

    name: str
    classes: int = 0
    place: Slice | None = None


@dataclass(frozen=True)
class Request:
    """An inference; an empty version is the one that the server chooses, no outputs are all."""

    model: str
    version: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...] = ()
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


def on_host(request: Request) -> Request:
    """Return a request whose tensors are on the host, or in shared memory."""
    if all(isinstance(entry.data, memoryview | Slice) for entry in request.inputs):
        return request
    inputs = (
        entry if isinstance(entry.data, memoryview | Slice) else replace(entry, data=host_bytes(entry.data))
        for entry in request.inputs
    )
    return replace(request, inputs=tuple(inputs))


@dataclass(frozen=True)
class Response:
    """An answer; `placed` are the outputs that lie in shared memory, with datatype and shape."""

    model: str
    version: str
    id: str
    arrays: Mapping[str, Array]
    placed: Mapping[str, tuple[str, tuple[int, ...]]]
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """How calls are made.

    Attributes:
        timeout: seconds for a call, with everything that is sent again.
        retry: whether a call is sent again when the server cannot be reached or is not available.
        hedge: whether a call is sent a second time when its answer is later than 95% of them.
        outputs: names of the outputs to return; none are all.
        classes: return so many best classes of each output; see `Result.top`.
        id: of the request.
        priority: of the request, where the model has priorities.
        parameters: of the request.
    """

    timeout: float = TIMEOUT
    retry: bool = True
    hedge: bool = False
    outputs: tuple[str, ...] = ()
    classes: int = 0
    id: str = ""
    priority: int = 0
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
