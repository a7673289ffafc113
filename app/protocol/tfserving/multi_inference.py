"""TensorFlow Serving's MultiInference: several tasks of Classify and Regress by one inference.

Rules and texts are those of its servables/tensorflow/multi_inference.cc and multi_inference_helper.cc.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from app.core.errors import invalid_arg, unsupported
from app.core.tensors import InferResponse
from app.protocol.tfserving import examples
from app.protocol.tfserving.messages import message_class
from app.protocol.tfserving.signature import DEFAULT, Signature

MultiInferenceRequest: Final = message_class("MultiInferenceRequest")


class Method(NamedTuple):
    """A kind of task.

    Attributes:
        field: of the result.
        outputs: names the outputs that it reads.
        read: reads them from a response.
        fill: writes what was read into the field.
    """

    field: str
    outputs: Callable[[Signature], list[str]]
    read: Callable[[InferResponse, Signature, int], Sequence[Any]]
    fill: Callable[[Any, Any], None]


class Task(NamedTuple):
    """A task of a request, by the name of its signature."""

    signature_name: str
    method: Method


_METHODS: Final = {
    "tensorflow/serving/classify": Method(
        "classification_result", examples.classify_outputs, examples.classes, examples.fill_classes
    ),
    "tensorflow/serving/regress": Method(
        "regression_result", examples.regress_outputs, examples.values, examples.fill_values
    ),
}


def model_spec(message: Any) -> Any:
    """Return the model of the first task, whose version answers all tasks.

    Raises:
        InferError: INVALID_ARG for none.
    """
    if not message.tasks or not message.tasks[0].model_spec.name:
        raise invalid_arg("ModelSpec has no name specified.")
    return message.tasks[0].model_spec


def decode_tasks(message: Any, signature: Signature) -> list[Task]:
    """Return the tasks of a request.

    Raises:
        InferError: INVALID_ARG for another model or signature, UNSUPPORTED for another method.
    """
    tasks: dict[str, Task] = {}
    for each in message.tasks:
        name = _signature_name(each.model_spec, model_spec(message).name)
        if name in tasks:
            raise invalid_arg(f"Duplicate evaluation of signature: {name}")
        if not signature.has(name):
            raise invalid_arg(f"Requested signature not found in model graph: {name}")
        if each.method_name not in _METHODS:
            raise unsupported(f"Unsupported signature method_name: {each.method_name}")
        tasks[name] = Task(name, _METHODS[each.method_name])
    return list(tasks.values())


def _signature_name(spec: Any, model: str) -> str:
    if not spec.name:
        raise invalid_arg("Found ModelSpec with an empty model name.")
    if spec.name != model:
        raise invalid_arg("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
    return str(spec.signature_name) or DEFAULT


def wanted_outputs(tasks: Sequence[Task], signature: Signature) -> list[str]:
    """Return the outputs that some tasks read, each once."""
    return list(dict.fromkeys(name for task in tasks for name in task.method.outputs(signature)))


def encode_results(
    tasks: Sequence[Task], response: InferResponse, version: int, signature: Signature, count: int
) -> Any:
    """Return the answer to tasks with so many examples; raise `InferError` for outputs of other shapes."""
    message = message_class("MultiInferenceResponse")()
    for task in tasks:
        result = message.results.add()
        field = getattr(result, task.method.field)
        field.SetInParent()
        task.method.fill(field, task.method.read(response, signature, count))
        examples.set_spec(result.model_spec, response.model_name, version, task.signature_name)
    return message
