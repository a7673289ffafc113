"""Implicit state: outputs of one request of a sequence that become inputs of the next."""

from math import prod
from pathlib import Path
from typing import NamedTuple

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import datatype_name
from app.core.datatypes import BY_CONFIG_NAME, DATATYPES
from app.core.errors import invalid_arg
from app.core.tensors import InferResponse, RequestedOutput, Tensor

State = dict[str, Tensor]
"""The state of one sequence: the next request's input by the name of the output that it came from."""


class _Slot(NamedTuple):
    initial: Tensor
    is_output: bool


class States:
    """The `state` blocks of a configuration.

    Without `initial_state` Triton leaves the first state uninitialised; here it is zero, so that it cannot
    hold data of another sequence.
    """

    def __init__(self, config: mc.ModelConfig, directory: Path) -> None:
        listed = {output.name for output in config.output}
        batched = config.max_batch_size > 0
        self._slots = {
            state.output_name: _Slot(
                _initial(config.name, state, batched, directory), state.output_name in listed
            )
            for state in config.sequence_batching.state
        }

    def __bool__(self) -> bool:
        return bool(self._slots)

    def initial(self) -> State:
        """Return the state of a sequence that starts."""
        return {name: slot.initial for name, slot in self._slots.items()}

    def update(
        self, state: State, response: InferResponse, requested: tuple[RequestedOutput, ...]
    ) -> InferResponse:
        """Copy the states of a response into `state`; return it without those the client did not request."""
        wanted = {output.name for output in requested}
        visible = []
        for tensor in response.outputs:
            slot = self._slots.get(tensor.name)
            if slot is not None:
                # A copy: the response may be a view of the outputs of a whole batch.
                state[tensor.name] = Tensor(
                    slot.initial.name, tensor.datatype, tensor.shape, bytes(tensor.data)
                )
            if slot is None or (slot.is_output and (not wanted or tensor.name in wanted)):
                visible.append(tensor)
        if len(visible) == len(response.outputs):
            return response
        return msgspec.structs.replace(response, outputs=tuple(visible))


def _initial(model: str, state: mc.ModelSequenceBatching.State, batched: bool, directory: Path) -> Tensor:
    datatype = BY_CONFIG_NAME[datatype_name(state.data_type)].name
    given = state.initial_state[0] if state.initial_state else None
    dims = tuple(given.dims if given is not None and given.dims else state.dims)
    dims = tuple(1 if dim < 0 else dim for dim in dims)
    shape = (1, *dims) if batched else dims
    # A string of zero data is an empty one: four bytes of length.
    data = bytes(prod(dims) * (DATATYPES[datatype].itemsize or 4))
    if given is not None and given.data_file:
        data = _read(model, directory, given.data_file, len(data) if datatype != "BYTES" else None)
    return Tensor(state.input_name, datatype, shape, data)


def _read(model: str, directory: Path, name: str, size: int | None) -> bytes:
    path = directory / "initial_state" / name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise invalid_arg(
            f"failed to read initial state '{path}' of model '{model}': {error.strerror}"
        ) from error
    if size is not None and len(data) != size:
        raise invalid_arg(
            f"initial state '{name}' of model '{model}' has {len(data)} bytes, its configuration needs {size}"
        )
    return data
