"""TensorFlow Serving's Classify and Regress: serialised examples for a model's one input, and its answers.

Names of tensors, rules and texts are those of its servables/tensorflow/classifier.cc and regressor.cc, those
of JSON of its util/json_tensor.cc.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from app.core.datatypes import pack_bytes
from app.core.errors import invalid_arg
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.protocol.tfserving.messages import message_class
from app.protocol.tfserving.rest import model_array, read_document
from app.protocol.tfserving.signature import Signature, client_shape

ClassificationRequest: Final = message_class("ClassificationRequest")
RegressionRequest: Final = message_class("RegressionRequest")
_Example: Final = message_class("Example")

_INPUT: Final = "inputs"
_CLASSES, _SCORES, _VALUES = "classes", "scores", "outputs"
_MAX_CONTEXTS: Final = 16 << 20
"""Bytes that the features common to all examples of a request may take."""
_MAX_FLOAT: Final = float(np.finfo(np.float32).max)


class Classes(NamedTuple):
    """The classes of an example: names and scores, of which a model may have but one."""

    labels: list[str]
    scores: list[float]


def decode_examples(body: bytes | memoryview, signature: Signature, limit: int) -> list[bytes]:
    """Decode the body of `:classify` and `:regress`.

    Args:
        body: JSON.
        signature: of the model.
        limit: bytes that the body may have.

    Raises:
        InferError: INVALID_ARG.
    """
    document = read_document(body, signature, limit)
    context = _example(document["context"]) if "context" in document else b""
    if "examples" not in document:
        raise invalid_arg("When method is classify, key 'examples' is expected and was not found")
    examples = document["examples"]
    if not isinstance(examples, list):
        raise invalid_arg("Expecting 'examples' value to be an list/array")
    if not examples:
        raise invalid_arg("'examples' value is an empty array")
    return _merged(context, [_example(each) for each in examples])


def _merged(context: bytes, examples: list[bytes]) -> list[bytes]:
    """Return examples with their common features."""
    size = len(context) * len(examples)
    if size > _MAX_CONTEXTS:
        raise invalid_arg(
            f"a context of {len(context)} bytes for each of {len(examples)} examples is {size} bytes, "
            f"which exceeds the maximum of {_MAX_CONTEXTS}"
        )
    return [context + each for each in examples]  # which is the merged message


def _example(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise invalid_arg(f"Example must be JSON object but got JSON {_kind(value)}")
    example = _Example()
    example.features.SetInParent()
    for name, content in value.items():
        try:
            feature = example.features.feature[name]
        except UnicodeEncodeError:
            raise invalid_arg("JSON Parse error: The surrogate pair in string is invalid.") from None
        for each in content if isinstance(content, list) else [content]:
            _add(feature, name, each)
    return bytes(example.SerializeToString(deterministic=True))


def _add(feature: Any, name: str, value: Any) -> None:
    kind, element = _feature_value(name, value)
    for other in ("bytes", "float", "int64"):
        if other != kind and feature.HasField(f"{other}_list"):
            raise invalid_arg(f"Unexpected element type in feature: {name} expecting type: {other}")
    try:
        getattr(feature, f"{kind}_list").value.append(element)
    except ValueError:
        raise invalid_arg(f"Feature: {name} has uint64 element. Only int64 is supported.") from None


def _feature_value(name: str, value: Any) -> tuple[str, Any]:
    """Return the kind of list that takes a value, and the value for it."""
    if isinstance(value, bool | int):
        return "int64", int(value)
    if isinstance(value, float):
        if isfinite(value) and abs(value) > _MAX_FLOAT:
            raise invalid_arg(f"Cannot convert JSON value: {value} to float without loss of precision.")
        return "float", value
    if isinstance(value, str):
        return "bytes", value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        try:
            return "bytes", base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError):
            raise invalid_arg("Unable to base64 decode") from None
    raise invalid_arg(f"Feature: {name} has element with unexpected JSON type: {_kind(value)}")


def _kind(value: Any) -> str:
    """Return RapidJSON's name of a value's type."""
    if isinstance(value, bool):
        return "True" if value else "False"
    names = {dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}
    return names.get(type(value), "Null")


def examples_of(message: Any, signature: Signature) -> list[bytes]:
    """Return the examples of a ClassificationRequest or a RegressionRequest.

    Raises:
        InferError: INVALID_ARG.
    """
    signature.require(message.model_spec.signature_name)
    return input_examples(message.input)


def input_examples(given: Any) -> list[bytes]:
    """Return the examples of an Input; raise `InferError` for one without."""
    with_context = given.example_list_with_context
    found = _merged(with_context.context, list(with_context.examples))
    found = found or list(given.example_list.examples)
    if not found:
        raise invalid_arg("Input is empty.")
    return found


def classify_outputs(signature: Signature) -> list[str]:
    """Return the outputs that Classify reads; raise `InferError` for a model that classifies nothing."""
    wanted = [name for name in (_CLASSES, _SCORES) if name in signature.outputs]
    if not wanted:
        raise invalid_arg(
            'Expected classification signature outputs to contain at least one of "classes" or "scores".'
        )
    return wanted


def regress_outputs(signature: Signature) -> list[str]:
    """Return the output that Regress reads; raise `InferError` for a model that has no such one."""
    if _VALUES not in signature.outputs:
        raise invalid_arg("No regression outputs found in SignatureDef")
    return [_VALUES]


def examples_request(
    model: str,
    version: int,
    examples: Sequence[bytes],
    signature: Signature,
    outputs: Sequence[str],
    deadline: float = 0.0,
) -> InferRequest:
    """Return the request for outputs of some examples; raise `InferError` for a model that takes none."""
    if len(signature.inputs) != 1:
        raise invalid_arg("Expected one input Tensor.")
    spec = signature.inputs.get(_INPUT)
    if spec is None or spec.datatype != "BYTES":
        raise invalid_arg(f"the model has no input '{_INPUT}' of strings, which takes serialised examples")
    shape = client_shape(spec, (len(examples),))
    tensors = (Tensor(spec.name, "BYTES", shape, pack_bytes(examples)),)
    wanted = tuple(RequestedOutput(name) for name in outputs)
    return InferRequest(model, str(version), tensors, outputs=wanted, deadline=deadline)


def classes(response: InferResponse, signature: Signature, count: int) -> list[Classes]:
    """Return the classes of each of so many examples.

    Raises:
        InferError: INVALID_ARG for outputs of another shape.
    """
    found = _arrays(response, signature, (_CLASSES, _SCORES))
    for name, array in found.items():
        if array.ndim != 2:
            raise invalid_arg(f"Expected Tensor shape: [batch_size num_classes] but got {_shape(array)}")
        if len(array) != count:
            raise invalid_arg(f"Expected {name} output batch size of {count}. Got: {len(array)}")
    labels, scores = found.get(_CLASSES), found.get(_SCORES)
    if labels is not None and scores is not None and labels.shape != scores.shape:
        raise invalid_arg(
            "Tensors class and score should match in dim_size(1). "
            f"Got {labels.shape[1]} vs. {scores.shape[1]}"
        )
    shape = next(iter(found.values())).shape
    texts = np.full(shape, b"", object) if labels is None else labels
    numbers = np.zeros(shape) if scores is None else scores
    return [
        Classes([bytes(label).decode(errors="replace") for label in row], values.tolist())
        for row, values in zip(texts, numbers, strict=True)
    ]


def values(response: InferResponse, signature: Signature, count: int) -> list[float]:
    """Return the value of each of so many examples.

    Raises:
        InferError: INVALID_ARG for an output of another shape.
    """
    (array,) = _arrays(response, signature, (_VALUES,)).values()
    if array.ndim not in (1, 2) or array.shape[1:] not in ((), (1,)):
        raise invalid_arg(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
            f"{_shape(array)}"
        )
    if len(array) != count:
        text = f"Input batch size did not match output batch size: {count} vs. {len(array)}"
        raise invalid_arg(text)
    found: list[float] = array.ravel().tolist()
    return found


def _arrays(response: InferResponse, signature: Signature, names: Sequence[str]) -> dict[str, Any]:
    """Return those of some outputs that a response has."""
    return {each.name: model_array(each, signature) for each in response.outputs if each.name in names}


def _shape(array: npt.NDArray[Any]) -> str:
    return f"[{','.join(map(str, array.shape))}]"


def encode_classes(found: Sequence[Classes]) -> bytes:
    """Return the body of the answer of `:classify`."""
    rows = [[list(each) for each in zip(row.labels, row.scores, strict=True)] for row in found]
    return json.dumps({"results": rows}).encode()


def encode_values(found: Sequence[float]) -> bytes:
    """Return the body of the answer of `:regress`."""
    return json.dumps({"results": found}).encode()


def classification_response(found: Sequence[Classes], model: str, version: int, signature: Signature) -> Any:
    """Return the answer of Classify."""
    message = message_class("ClassificationResponse")()
    set_spec(message.model_spec, model, version, signature.name)
    fill_classes(message.result, found)
    return message


def fill_classes(result: Any, found: Sequence[Classes]) -> None:
    """Write classes into a ClassificationResult."""
    for row in found:
        entry = result.classifications.add()
        for label, score in zip(row.labels, row.scores, strict=True):
            entry.classes.add(label=label, score=score)


def regression_response(found: Sequence[float], model: str, version: int, signature: Signature) -> Any:
    """Return the answer of Regress."""
    message = message_class("RegressionResponse")()
    set_spec(message.model_spec, model, version, signature.name)
    fill_values(message.result, found)
    return message


def fill_values(result: Any, found: Sequence[float]) -> None:
    """Write values into a RegressionResult."""
    for value in found:
        result.regressions.add(value=value)


def set_spec(spec: Any, model: str, version: int, signature_name: str) -> None:
    """Write the model that has answered into a ModelSpec."""
    spec.name, spec.signature_name = model, signature_name
    spec.version.value = version
