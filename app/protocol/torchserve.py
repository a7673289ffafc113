"""TorchServe's predictions: a body or a form to the tensors of a migrated model, its answer back.

A migrated model (`nereid migrate torchserve`) has three inputs of strings with one element for each part of
a request: its name, its content type and its bytes. A body that is no form is one part of the name "body".
Parts, types and errors were compared with those of TorchServe 0.12.0.
"""

import json
from typing import Final
from urllib.parse import parse_qsl

from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import pack_bytes
from app.core.errors import InferError, internal, invalid_arg, not_found
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.protocol import forms

NAMES: Final = "names"
TYPES: Final = "content_types"
PARTS: Final = "parts"
ANSWER: Final = "answer"
ANSWER_TYPE: Final = "content_type"
_BODY: Final = "body"
_UNKNOWN: Final = "application/octet-stream"
_FIELDS: Final = "application/x-www-form-urlencoded"

Part = tuple[str, str, bytes]
"""Name, content type, bytes."""


def decode_prediction(
    model: str, version: str, body: bytes | memoryview, content_type: str, config: mc.ModelConfig
) -> InferRequest:
    """Return the request to a migrated model.

    Raises:
        InferError: INVALID_ARG for a form that cannot be read, and a model that was not migrated.
    """
    if {tensor.name for tensor in config.input} != {NAMES, TYPES, PARTS}:
        raise invalid_arg(f"'{model}' is no model of TorchServe: call /v2/models/{model}/infer")
    parts: list[Part] = []
    if content_type.startswith(forms.MEDIA_TYPE):
        parts = _form(body, content_type)
    elif content_type.startswith(_FIELDS):
        parts = _fields(bytes(body))
    parts = parts or [(_BODY, content_type, bytes(body))]
    batch = (1,) if config.max_batch_size > 0 else ()
    columns = zip((NAMES, TYPES, PARTS), zip(*parts, strict=True), strict=True)
    return InferRequest(
        model,
        version,
        tuple(Tensor(name, "BYTES", (*batch, len(values)), pack_bytes(values)) for name, values in columns),
    )


def _form(body: bytes | memoryview, content_type: str) -> list[Part]:
    """Return the parts of a form; TorchServe takes types from files alone."""
    return [
        (part.name, (part.media_type or _UNKNOWN) if part.file_name else "", part.data)
        for part in forms.read_form(body, content_type)
    ]


def _fields(body: bytes) -> list[Part]:
    """Return the fields of a form in one line; none for another body, which curl calls so by default."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=b"=" in body, max_num_fields=forms.MAX_PARTS)
    except ValueError:
        return []
    return [(name, "", value.encode()) for name, value in pairs]


def encode_prediction(response: InferResponse) -> tuple[bytes, bytes]:
    """Return content type and body of an answer.

    Raises:
        InferError: INTERNAL for the outputs of another model.
    """
    outputs = {tensor.name: tensor for tensor in response.outputs}
    if not outputs.keys() >= {ANSWER, ANSWER_TYPE}:
        raise internal(f"the outputs '{ANSWER}' and '{ANSWER_TYPE}' are missing")
    answer, content_type = (outputs[name].array().ravel()[0] for name in (ANSWER, ANSWER_TYPE))
    return bytes(content_type).replace(b"\r", b"").replace(b"\n", b""), bytes(answer)


def encode_failure(status: int, message: str) -> bytes:
    """Return the body of an error, as TorchServe has it."""
    kinds = {404: "ModelNotFoundException", 503: "ServiceUnavailableException", 400: "BadRequestException"}
    return _error(status, kinds[status], message)


PREDICTION_FAILED: Final = 503
"""The status of a handler's failure."""


def encode_prediction_failed() -> bytes:
    """Return the body of the answer for a handler that failed: TorchServe does not say why."""
    return _error(PREDICTION_FAILED, "InternalServerException", "Prediction failed")


def _error(status: int, kind: str, message: str) -> bytes:
    return json.dumps({"code": status, "type": kind, "message": message}, indent=2).encode() + b"\n"


def model_not_found(model: str, version: str) -> InferError:
    """Return the error for an unknown model or version, in TorchServe's words."""
    if version:
        return not_found(f"Model version: {version} does not exist for model: {model}")
    return not_found(f"Model not found: {model}")
