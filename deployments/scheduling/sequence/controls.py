"""The control tensors of a sequence model: START, END, READY and the correlation id."""

import itertools
from typing import Any, Final, NamedTuple

import numpy as np
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import datatype_name
from app.core.datatypes import BY_CONFIG_NAME, DATATYPES, pack_bytes
from app.core.errors import invalid_arg
from app.core.tensors import SequenceId, Tensor

_KIND: Final = mc.ModelSequenceBatching.Control.Kind
_VALUES: Final = (
    ("int32_false_true", np.int32),
    ("fp32_false_true", np.float32),
    ("bool_false_true", np.bool_),
)
_FLAGS: Final = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")


class _Corrid(NamedTuple):
    name: str
    datatype: str


class Controls:
    """Makes the control tensors of a request, each of shape [1], or [1,1] where the model batches.

    Attributes:
        uses_ready: the model has a READY control, which marks the rows of its batch that are real.
    """

    def __init__(self, config: mc.ModelConfig) -> None:
        self._model = config.name
        self._shape = (1, 1) if config.max_batch_size else (1,)
        self._corrid: _Corrid | None = None
        flags: dict[str, list[tuple[Tensor, Tensor]]] = {kind: [] for kind in _FLAGS}
        for control_input in config.sequence_batching.control_input:
            for control in control_input.control:
                kind = _KIND.Name(control.kind)
                if kind in flags:
                    flags[kind].append(self._false_true(control_input.name, control))
                else:
                    self._corrid = _Corrid(
                        control_input.name, BY_CONFIG_NAME[datatype_name(control.data_type)].name
                    )
        self.uses_ready = bool(flags["CONTROL_SEQUENCE_READY"])
        # All eight settings of three flags, made once: a request only looks its tensors up.
        self._flags = {
            setting: tuple(pair[on] for kind, on in zip(_FLAGS, setting, strict=True) for pair in flags[kind])
            for setting in itertools.product((False, True), repeat=len(_FLAGS))
        }

    def check(self, sequence_id: SequenceId, request_id: str) -> None:
        """Compare the type of a correlation id with that of the CORRID control.

        Raises:
            InferError: INVALID_ARG when a number meets a string control or the reverse.
        """
        if self._corrid is None or isinstance(sequence_id, str) == (self._corrid.datatype == "BYTES"):
            return
        given = "BYTES" if isinstance(sequence_id, str) else "UINT64"
        raise invalid_arg(
            f"[request id: {request_id or '<id_unknown>'}] sequence batching control '{self._corrid.name}'"
            f" data-type is '{given}', but model '{self._model}' expects '{self._corrid.datatype}'"
        )

    def tensors(self, start: bool, end: bool, sequence_id: SequenceId) -> tuple[Tensor, ...]:
        """Return the control tensors of a request."""
        flags = self._flags[start, end, True]
        return flags if self._corrid is None else (*flags, self._id_tensor(self._corrid, sequence_id))

    def null_tensors(self) -> tuple[Tensor, ...]:
        """Return the control tensors of a row without a request: every flag false, no correlation id."""
        flags = self._flags[False, False, False]
        if self._corrid is None:
            return flags
        return (*flags, self._id_tensor(self._corrid, "" if self._corrid.datatype == "BYTES" else 0))

    def _false_true(self, name: str, control: Any) -> tuple[Tensor, Tensor]:
        field, dtype = next((field, dtype) for field, dtype in _VALUES if getattr(control, field))
        off, on = (
            Tensor.from_array(name, np.full(self._shape, value, dtype)) for value in getattr(control, field)
        )
        return off, on

    def _id_tensor(self, corrid: _Corrid, sequence_id: SequenceId) -> Tensor:
        if isinstance(sequence_id, str):
            return Tensor(corrid.name, "BYTES", self._shape, pack_bytes([sequence_id.encode()]))
        size = DATATYPES[corrid.datatype].itemsize
        # As a C++ cast does: what does not fit loses its high bits.
        data = (sequence_id & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        return Tensor(corrid.name, corrid.datatype, self._shape, data)
