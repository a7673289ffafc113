"""Triton's teaching backends `sequence` and `dyna_sequence`: an accumulator for each sequence.

INPUT INT32[n] and OUTPUT INT32[n]: the elements of INPUT are added to the sequence's accumulator, which START
sets to 0 first; every element of OUTPUT is its value, in 32 bits. Controls are INT32 tensors: START and
READY, with `dyna_sequence` END and CORRID (UINT64, or a STRING of digits) too. END adds the correlation id.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import datatype_name
from app.core.errors import invalid_arg
from app.core.tensors import InferResponse, SequenceId, Tensor, failed
from backends.array_backend import backend_failure
from backends.base import Backend, Instance, Model, Request
from backends.parameters import integer

_FLAGS: Final = {
    "START": "CONTROL_SEQUENCE_START",
    "END": "CONTROL_SEQUENCE_END",
    "READY": "CONTROL_SEQUENCE_READY",
}


class _State(NamedTuple):
    """State of one instance: accumulators by sequence, and the delay of an execution in milliseconds."""

    accumulators: dict[SequenceId, int]
    delay_ms: int


class SequenceBackend(Backend):
    """Adds up each sequence. Parameter `execute_delay_ms` delays every execution.

    Triton's has its accumulators by row and needs the direct strategy; here they are kept by sequence.
    """

    name: ClassVar[str] = "sequence"
    flags: ClassVar[tuple[str, ...]] = ("START", "READY")

    @classmethod
    def inspect(cls, model: Model) -> bool:
        return True

    def model_initialize(self, model: Model) -> None:
        _validate_tensors(model.config)
        _validate_controls(model.config, self.flags)
        model.state = integer(model, "execute_delay_ms")

    def instance_initialize(self, instance: Instance) -> None:
        if instance.kind == "GPU":
            raise invalid_arg(f"'{self.name}' backend only supports CPU instances")
        instance.state = _State({}, instance.model.state)

    def sequence_finalize(self, instance: Instance, sequence_id: SequenceId) -> None:
        state: _State = instance.state
        state.accumulators.pop(sequence_id, None)

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        state: _State = instance.state
        if state.delay_ms:
            time.sleep(state.delay_ms / 1000)
        for request in requests:
            request.deliver(self._response(instance.model, state.accumulators, request))

    def added_at_end(self, inputs: Mapping[str, Tensor]) -> int:
        """Return the number that a request adds besides its input."""
        return 0

    def _response(self, model: Model, accumulators: dict[SequenceId, int], request: Request) -> InferResponse:
        infer = request.infer
        try:
            inputs = {tensor.name: tensor for tensor in infer.inputs}
            if not _flag(inputs, "READY"):
                return InferResponse(id=infer.id)
            values = inputs["INPUT"].array()
            total = int(values.sum()) + self.added_at_end(inputs)
            if not _flag(inputs, "START"):
                total += accumulators.get(infer.sequence_id, 0)
            accumulators[infer.sequence_id] = total = total & 0xFFFFFFFF
            output = np.full(values.shape, total, np.uint32).view(np.int32)
        except Exception as error:
            return failed(backend_failure(error), infer.id)
        return InferResponse(model.name, model.version_text, (Tensor.from_array("OUTPUT", output),), infer.id)


class DynaSequenceBackend(SequenceBackend):
    """Adds up each sequence, and its correlation id at its end."""

    name = "dyna_sequence"
    flags = ("START", "END", "READY")

    def model_initialize(self, model: Model) -> None:
        super().model_initialize(model)
        _validate_corrid(model.config)

    def added_at_end(self, inputs: Mapping[str, Tensor]) -> int:
        if not _flag(inputs, "END"):
            return 0
        correlation_id = inputs["CORRID"].array().ravel()[0]
        try:
            return int(correlation_id)
        except ValueError:
            raise invalid_arg(
                f"'dyna_sequence' backend needs a correlation id of digits, got '{correlation_id.decode()}'"
            ) from None


def _flag(inputs: Mapping[str, Tensor], name: str) -> bool:
    return bool(inputs[name].array().ravel()[0])


def _validate_tensors(config: mc.ModelConfig) -> None:
    tensors: list[tuple[str, Any]] = [("INPUT", config.input), ("OUTPUT", config.output)]
    for name, found in tensors:
        kind = name.lower()
        if len(found) != 1:
            raise invalid_arg(f"model configuration must have 1 {kind}, got {len(found)}")
        if found[0].name != name:
            raise invalid_arg(f"expected {kind} name to be '{name}', got '{found[0].name}'")
        if found[0].data_type != mc.TYPE_INT32:
            raise invalid_arg(
                f"expected {kind} datatype to be TYPE_INT32, got {datatype_name(found[0].data_type)}"
            )
    if config.input[0].dims != config.output[0].dims:
        raise invalid_arg("expected INPUT and OUTPUT shapes to match")


def _validate_controls(config: mc.ModelConfig, flags: Sequence[str]) -> None:
    for name in flags:
        control = _control(config, name)
        if control is None or mc.ModelSequenceBatching.Control.Kind.Name(control.kind) != _FLAGS[name]:
            raise invalid_arg(f"expected control '{name}' of kind {_FLAGS[name]}")
        if not control.int32_false_true:
            raise invalid_arg(f"expected control '{name}' to have 'int32_false_true'")


def _validate_corrid(config: mc.ModelConfig) -> None:
    control = _control(config, "CORRID")
    if control is None or control.data_type not in (mc.TYPE_UINT64, mc.TYPE_STRING):
        raise invalid_arg("expected control 'CORRID' of datatype TYPE_UINT64 or TYPE_STRING")


def _control(config: mc.ModelConfig, name: str) -> Any:
    for control_input in config.sequence_batching.control_input:
        if control_input.name == name and control_input.control:
            return control_input.control[0]
    return None
