"""Triton's teaching backend `identity`: OUTPUT<i> is INPUT<i>, whatever the data type and shape."""

import math
import threading
import time
from collections.abc import Container, Sequence
from typing import Any, Final, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import WILDCARD, TensorSpec, datatype_name, dims_text
from app.core.errors import invalid_arg, unsupported
from app.core.tensors import InferRequest, InferResponse, Parameters, Tensor, failed
from backends.base import Backend, Instance, Model, Request
from backends.parameters import boolean, integer, positive

# Every response carries these, so that clients can test response parameters.
RESPONSE_PARAMETERS: Final[Parameters] = {
    "param0": "an example string parameter",
    "param1": 42,
    "param2": False,
    "param3": 123.123,
}

_COUNTER: Final = "input_byte_size_counter"
_HELP: Final = "Cumulative input byte size of all requests received by the model"
_ACTIVITY_S: Final = 0.1
_EMPTY_BYTES: Final = 4
"""Size of an empty element of a BYTES tensor: its length prefix."""


class _Tracing(NamedTuple):
    """Activities reported for a traced request: nested spans, and one activity in every `frequency`-th."""

    spans: int
    frequency: int

    def report(self, request: Request) -> None:
        """Report the activities, with 0.1 s for each span."""
        request.report_activity("CUSTOM_ACTIVITY_START")
        time.sleep(_ACTIVITY_S)
        request.report_activity("CUSTOM_ACTIVITY_END")
        request.report_activity("CUSTOM_SINGLE_ACTIVITY")
        for number in range(self.spans):
            request.report_activity(f"CUSTOM_ACTIVITY{number}_START")
            time.sleep(_ACTIVITY_S)
            if number % self.frequency == 0:
                request.report_activity("CUSTOM_SINGLE_ACTIVITY")
        for number in reversed(range(self.spans)):
            request.report_activity(f"CUSTOM_ACTIVITY{number}_END")


class _Copied:
    """The bytes that all instances of a model have copied."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Count bytes; instances execute in threads of their own."""
        with self._lock:
            self.total += size


class _State(NamedTuple):
    """Settings that `model_initialize` reads from the configuration; the delay is in milliseconds.

    `optional` are the inputs that may be missing, by the names of their outputs. `reshapes`: clients see
    other shapes than the backend, of an input or an output.
    """

    outputs: dict[str, TensorSpec]
    optional: dict[str, TensorSpec]
    delay_ms: int
    multiplier: int
    tracing: _Tracing | None
    copied: _Copied
    reshapes: bool


class IdentityBackend(Backend):
    """Copies inputs to outputs; the output of an input that is missing is zero.

    Parameters of the configuration: `creation_delay_sec` delays the load, `execute_delay_ms` every
    execution, `instance_wise_delay_multiplier` multiplies the latter, times the instance's index. With
    `enable_custom_tracing`, activities of a traced request are reported: `nested_span_count` nested spans and
    a single activity in each `single_activity_frequency`-th. The metric `input_byte_size_counter` counts the
    bytes copied.
    """

    def __init__(self) -> None:
        self._copied: dict[Model, _Copied] = {}

    @classmethod
    def inspect(cls, model: Model) -> bool:
        return True

    def model_initialize(self, model: Model) -> None:
        _validate(model.config)
        copied = self._copied[model] = _Copied()
        inputs = model.signature.inputs.values()
        model.state = _State(
            {output.name: output.spec for output in model.signature.outputs},
            {_output_name(spec.name): spec for spec in inputs if spec.optional},
            integer(model, "execute_delay_ms"),
            integer(model, "instance_wise_delay_multiplier"),
            _tracing(model),
            copied,
            model.signature.reshaped,
        )
        time.sleep(integer(model, "creation_delay_sec"))

    def model_finalize(self, model: Model) -> None:
        model.state = None
        self._copied.pop(model, None)

    def metrics(self) -> list[Any]:
        samples = [
            [{"model": model.name, "version": model.version_text}, float(copied.total), 0, [], []]
            for model, copied in list(self._copied.items())
        ]
        return [[_COUNTER, _HELP, "counter", samples]] if samples else []

    def instance_initialize(self, instance: Instance) -> None:
        if instance.kind == "GPU":
            raise unsupported("'identity' backend only supports CPU instances")

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        state: _State = instance.model.state
        if state.delay_ms:
            time.sleep(state.delay_ms * max(1, state.multiplier * instance.index) / 1000)
        for request in requests:
            if state.tracing is not None and request.infer.trace:
                state.tracing.report(request)
            request.deliver(_response(instance.model, state, request))


def _response(model: Model, state: _State, request: Request) -> InferResponse:
    infer = request.infer
    copied = 0
    try:
        requested = {output.name for output in infer.outputs} or state.outputs.keys()
        outputs = []
        for tensor in infer.inputs:
            name = _output_name(tensor.name)
            if name in requested and name in state.outputs:
                shape = tensor.shape
                if state.reshapes:
                    shape = state.outputs[name].client_shape(model.signature.model_shape(tensor.name, shape))
                outputs.append(Tensor(name, tensor.datatype, shape, tensor.data))
                copied += len(tensor.data)
        state.copied.add(copied)
        if state.optional and len(infer.inputs) < len(state.outputs):
            outputs += _missing(model, state, infer, requested)
    except Exception as error:
        return failed(error, infer.id)
    return InferResponse(model.name, model.version_text, tuple(outputs), infer.id, RESPONSE_PARAMETERS)


def _missing(model: Model, state: _State, infer: InferRequest, requested: Container[str]) -> list[Tensor]:
    """Return zeros for the inputs that the client left out, with 1 for a variable dimension."""
    present = {_output_name(tensor.name) for tensor in infer.inputs}
    batch = infer.inputs[0].shape[:1] if model.signature.batched and infer.inputs else ()
    tensors = []
    for name, spec in state.optional.items():
        if name in requested and name not in present:
            dims = spec.dims if spec.reshape is None else spec.reshape
            shape = (*batch, *(1 if dim == WILDCARD else dim for dim in dims))
            data = bytes(math.prod(shape) * (spec.itemsize or _EMPTY_BYTES))
            tensors.append(Tensor(name, spec.datatype, state.outputs[name].client_shape(shape), data))
    return tensors


def _tracing(model: Model) -> _Tracing | None:
    spans = integer(model, "nested_span_count")
    tracing = _Tracing(spans, positive(model, "single_activity_frequency", 1))
    return tracing if boolean(model, "enable_custom_tracing") else None


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
