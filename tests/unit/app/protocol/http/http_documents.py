"""HTTP infer requests, put together and decoded."""

import json
from types import SimpleNamespace

import pytest

from app.core.errors import ErrorCode, InferError
from app.protocol.http.v2 import decode_infer

MODEL = SimpleNamespace(labels={"O": ("zero", "one")}, batched=True)
INT, ARG = ErrorCode.INTERNAL, ErrorCode.INVALID_ARG


def body(document, *tensors):
    header = json.dumps(document).encode() if isinstance(document, dict) else document
    return header + b"".join(tensors), len(header)


def an_input(**fields):
    return {"name": "I", "shape": [2], "datatype": "INT32", **fields}


def decode(document, *tensors, limit=1 << 20):
    return decode_infer("m", "1", *body(document, *tensors), limit)


def refusal(document, *tensors, limit=1 << 20):
    with pytest.raises(InferError) as caught:
        decode(document, *tensors, limit=limit)
    return caught.value.code, caught.value.message


def one_output(name="O", **parameters):
    return {"outputs": [{"name": name, **({"parameters": parameters} if parameters else {})}]}
