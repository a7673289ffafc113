"""Triton's teaching backend `identity`: OUTPUT<i> is INPUT<i>, whatever the data type and shape."""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg, unsupported
from app.core.model_config import TensorSpec, datatype_name, dims_text
from app.core.tensors import InferResponse, Parameters, Tensor, failed
from backends.base import Backend, Instance, Model, Request
from backends.parameters import integer

# Every response carries these, so that clients can test response parameters.
RESPONSE_PARAMETERS: Final[Parameters] = {
    "param0": "an example string parameter",
    "param1": 42,
    "param2": False,
    "param3": 123.123,
}


class _State(NamedTuple):
    """What `model_initialize` read from the configuration; the delay is in milliseconds."""

    outputs: dict[str, TensorSpec]
    delay_ms: int
    multiplier: int


class IdentityBackend(Backend):
    """Copies inputs to outputs.

    Parameters of the configuration: `creation_delay_sec` delays the load, `execute_delay_ms` every
    execution, `instance_wise_delay_multiplier` multiplies the latter, times the instance's index.
    """

    def model_initialize(self, model: Model) -> None:
        _validate(model.config)
        outputs = {output.name: output.spec for output in model.signature.outputs}
        delay_ms = integer(model, "execute_delay_ms")
        model.state = _State(outputs, delay_ms, integer(model, "instance_wise_delay_multiplier"))
        time.sleep(integer(model, "creation_delay_sec"))

    def instance_initialize(self, instance: Instance) -> None:
        if instance.kind == "GPU":
            raise unsupported("'identity' backend only supports CPU instances")

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        state: _State = instance.model.state
        if state.delay_ms:
            time.sleep(state.delay_ms * max(1, state.multiplier * instance.index) / 1000)
        for request in requests:
            request.reply(_answer(instance.model, state, request))


def _answer(model: Model, state: _State, request: Request) -> InferResponse:
    infer = request.infer
    try:
        requested = {output.name for output in infer.outputs} or state.outputs.keys()
        outputs = []
        for tensor in infer.inputs:
            name = _output_name(tensor.name)
            if name in requested and name in state.outputs:
                shape = state.outputs[name].client_shape(
                    model.signature.model_shape(tensor.name, tensor.shape)
                )
                outputs.append(Tensor(name, tensor.datatype, shape, tensor.data))
    except Exception as error:
        return failed(error, infer.id)
    return InferResponse(model.name, model.version_text, tuple(outputs), infer.id, RESPONSE_PARAMETERS)


def _output_name(input_name: str) -> str:
    return "OUTPUT" + input_name.removeprefix("INPUT")


def _validate(config: mc.ModelConfig) -> None:
    if len(config.input) != len(config.output):
        raise invalid_arg("model configuration must have equal input/output pairs")
    inputs = {}
    for tensor in config.input:
        if not tensor.name.startswith("INPUT"):
            raise invalid_arg(f"expected input name to follow INPUT<index> pattern, got '{tensor.name}'")
        inputs[_output_name(tensor.name)] = tensor
    for output in config.output:
        if not output.name.startswith("OUTPUT"):
            raise invalid_arg(f"expected output name to follow OUTPUT<index> pattern, got '{output.name}'")
        if output.name not in inputs:
            raise invalid_arg("expected input and output indices to match")
        _validate_pair(inputs[output.name], output)


def _validate_pair(tensor: mc.ModelInput, output: mc.ModelOutput) -> None:
    if tensor.data_type != output.data_type:
        raise invalid_arg(
            "expected input and output datatype to match, got"
            f" {datatype_name(tensor.data_type)} and {datatype_name(output.data_type)}"
        )
    shapes = [tuple(io.reshape.shape if io.HasField("reshape") else io.dims) for io in (tensor, output)]
    if shapes[0] != shapes[1]:
        texts = " and ".join(map(dims_text, shapes))
        raise invalid_arg(f"expected input and output shape to match, got {texts}")
