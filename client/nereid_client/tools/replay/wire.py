"""The outputs of answers as tensors by their wire bytes, as a tape has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError

from nereid_client.datatypes import encode, to_array
from nereid_client.tape.rows import TapeTensor

Outputs = tuple[TapeTensor, ...]
UNREADABLE: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError, DecodeError)
"""What the readers raise for bodies that are no answers."""
_MESSAGE: Final = 5
"""Bytes before a message of gRPC."""


def http_outputs(body: bytes) -> Outputs:
    """Return the outputs of the body of an answer over HTTP."""
    # A byte each character, so that the end of the JSON in the text is that in the body.
    head, at = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    head = json.loads(body[:at])
    found = []
    for output in head.get("outputs", ()):
        name, datatype, shape = str(output["name"]), str(output["datatype"]), tuple(map(int, output["shape"]))
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            data = encode(to_array(name, output["data"], datatype), datatype)
        else:
            data = memoryview(body)[at : at + size]
            at += size
        found.append(TapeTensor(name, datatype, shape, data, len(data)))
    return tuple(found)


def grpc_reader() -> tuple[Callable[[bytes], Outputs], Callable[[bytes], Outputs]]:
    """Return what reads the body of an answer over gRPC, and what reads a response of a stream."""
    from tritonclient.grpc import service_pb2 as pb

    one, streamed = pb.ModelInferResponse.FromString, pb.ModelStreamInferResponse.FromString
    return lambda body: _outputs(one(body[_MESSAGE:])), lambda body: _outputs(streamed(body).infer_response)


def _outputs(message: Any) -> Outputs:
    raw = [*message.raw_output_contents, *[b""] * len(message.outputs)]
    return tuple(
        TapeTensor(output.name, output.datatype, tuple(output.shape), data, len(data))
        for output, data in zip(message.outputs, raw, strict=False)
    )
