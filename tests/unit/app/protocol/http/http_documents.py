"""HTTP infer requests, put together and decoded."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.protocol.http.v2 import decode_infer

MODEL: Any = SimpleNamespace(labels={"O": ("zero", "one")}, batched=True, answering=lambda version: MODEL)
INT, ARG = ErrorCode.INTERNAL, ErrorCode.INVALID_ARG


def body(document: Any, *tensors: Any) -> tuple[bytes, int]:
    header = json.dumps(document).encode() if isinstance(document, dict) else document
    return header + b"".join(tensors), len(header)


def an_input(**fields: Any) -> Any:
    return {"name": "I", "shape": [2], "datatype": "INT32", **fields}


def decode(document: object, *tensors: Any, limit: int = 1 << 20) -> Any:
    data, json_length = body(document, *tensors)
    return decode_infer("m", "1", data, json_length, limit)


def refusal(document: object, *tensors: Any, limit: int = 1 << 20) -> Any:
    with pytest.raises(InferError) as caught:
        decode(document, *tensors, limit=limit)
    return caught.value.code, caught.value.message


def one_output(name: str = "O", **parameters: Any) -> Any:
    return {"outputs": [{"name": name, **({"parameters": parameters} if parameters else {})}]}
