"""Inference requests that are right, and such as are wrong in one way each."""

import gzip
import json
import zlib

from tests.peer.http_requests import (
    ROW,
    WIRE_ROW,
    Request,
    binary,
    chosen,
    first_input,
    infer,
    one,
    sequence,
    sums,
    tensor,
    with_binary,
)

PACKED = gzip.compress(json.dumps(sums()).encode(), mtime=0)
ENCODING = "Content-Encoding"
HEAD = json.dumps(binary(64, 64)).encode()

INFERENCE: dict[str, Request] = {
    "plain request": infer("sums", sums()),
    "with an id": infer("sums", sums(id="é")),
    "unknown key": infer("sums", sums(extra={"a": [1]})),
    "unknown model": infer("nobody", sums()),
    "unknown version": Request("POST", "/v2/models/sums/versions/9/infer", sums()),
    "version 0": Request("POST", "/v2/models/sums/versions/0/infer", sums()),
    "version out of range": Request("POST", "/v2/models/sums/versions/99999999999999999999/infer", sums()),
    "version in the URL": Request("POST", "/v2/models/sums/versions/1/infer", sums()),
    "missing input": infer("sums", {"inputs": sums()["inputs"][:1]}),
    "no inputs": infer("sums", {"inputs": []}),
    "doubled input": infer("sums", {"inputs": sums()["inputs"][:1] * 2}),
    "third input": infer("sums", {"inputs": [*sums()["inputs"], tensor("INPUT2", "INT32", [1], data=[1])]}),
    "misnamed input": infer("sums", first_input(name="INPUT9")),
    "other data type": infer("sums", first_input(datatype="INT64")),
    "no such data type": infer("sums", first_input(datatype="INT31")),
    "lower case data type": infer("sums", first_input(datatype="int32")),
    "data type STRING": infer("sums", first_input(datatype="STRING")),
    "data type TYPE_INT32": infer("sums", first_input(datatype="TYPE_INT32")),
    **{
        f"shape {shape}": infer("sums", first_input(shape=shape))
        for shape in (
            [16],
            [1, 15],
            [1, 17],
            [1, 16, 1],
            [2, 16],
            [0, 16],
            [9, 16],
            [1, 0],
            [1, -1],
            [-2, 16],
            [2**31, 16],
            [2**62, 16],
            [2**63 - 1, 2],
            [2**63, 1],
            [4294967297, 4294967297],
        )
    },
    "no batch of the other": infer("sums", first_input(shape=[2, 16], data=ROW * 2)),
    "nested data": infer("sums", first_input(data=[[[n] for n in ROW]])),
    "data too long": infer("sums", first_input(data=[*ROW, 16])),
    "data too short": infer("sums", first_input(data=ROW[:15])),
    "nested data too short": infer("sums", first_input(data=[ROW[:8], ROW[8:15]])),
    "object in data": infer("sums", first_input(data=[{}, *ROW[1:]])),
    "no data": infer("sums", first_input(data=...)),
    "no shape": infer("sums", first_input(shape=...)),
    "no data type": infer("sums", first_input(datatype=...)),
    "no name": infer("sums", first_input(name=...)),
    "strings too few": infer("word", one("IN", "BYTES", [2, 1], data=["a"])),
    "strings too many": infer("word", one("IN", "BYTES", [1, 1], data=["a", "b"])),
    "unbatched": infer("plain", one("IN", "FP32", [2, 2], data=[1, 2, 3, 4])),
    "unbatched, other shape": infer("plain", one("IN", "FP32", [3, 2], data=[1] * 6)),
    "unbatched, empty": infer("plain", one("IN", "FP32", [2, 0], data=[])),
    "unbatched, rank": infer("plain", one("IN", "FP32", [4], data=[1] * 4)),
    "unbatched, classes": infer(
        "plain",
        one("IN", "FP32", [2, 2], data=[1, 2, 3, 4])
        | {"outputs": [{"name": "OUT", "parameters": {"classification": 1}}]},
    ),
    "empty request": infer("types", {"inputs": []}),
    "empty tensor": infer(
        "types", one("INPUT_FP32", "FP32", [1, 0], data=[]) | {"outputs": [{"name": "OUTPUT_FP32"}]}
    ),
    "binary": with_binary(binary(64, 64), WIRE_ROW * 2),
    "binary out": with_binary(binary(64, 64) | {"parameters": {"binary_data_output": True}}, WIRE_ROW * 2),
    "binary, one too few": with_binary(binary(64, 63), WIRE_ROW * 2),
    "binary, more than sent": with_binary(binary(64, 65), WIRE_ROW * 2),
    "binary, less than the shape": with_binary(binary(60, 64), WIRE_ROW * 2),
    "binary, nothing sent": with_binary(binary(64, 64), b""),
    "binary, too much sent": with_binary(binary(64, 64), WIRE_ROW * 3),
    "binary of nothing": with_binary(binary(0, 64), WIRE_ROW),
    "binary, huge": with_binary(binary(2**40, 64), WIRE_ROW * 2),
    "binary, negative": with_binary(binary(-1, 64), WIRE_ROW * 2),
    "binary beside data": with_binary(first_input(parameters={"binary_data_size": 64}), WIRE_ROW),
    "binary without length": infer("sums", json.dumps(binary(64, 64)).encode() + WIRE_ROW * 2),
    **{
        f"JSON length {length!r}": with_binary(HEAD, WIRE_ROW * 2, length)
        for length in (
            0,
            -1,
            1,
            len(HEAD) - 1,
            len(HEAD) + 1,
            10**6,
            2**31,
            2**63,
            2**64,
            "",
            "x",
            " 5",
            "5x",
            "1.5",
            "0x10",
            "+5",
        )
    },
    "strings in binary": with_binary(
        one("IN", "BYTES", [1, 1], parameters={"binary_data_size": 5}), b"\1\0\0\0a", model="word"
    ),
    "string length cut": with_binary(
        one("IN", "BYTES", [1, 1], parameters={"binary_data_size": 3}), b"\1\0\0", model="word"
    ),
    "string cut": with_binary(
        one("IN", "BYTES", [1, 1], parameters={"binary_data_size": 5}), b"\2\0\0\0a", model="word"
    ),
    "string of gigabytes": with_binary(
        one("IN", "BYTES", [1, 1], parameters={"binary_data_size": 5}), b"\xff\xff\xff\xffa", model="word"
    ),
    "string not UTF-8": with_binary(
        one("IN", "BYTES", [1, 1], parameters={"binary_data_size": 6}), b"\2\0\0\0\xff\xfe", model="word"
    ),
    "no string": with_binary(
        one("IN", "BYTES", [1, 1], parameters={"binary_data_size": 0}), b"", model="word"
    ),
    "FP16 in binary, out as JSON": with_binary(
        one("INPUT_FP16", "FP16", [1, 1], parameters={"binary_data_size": 2})
        | {"outputs": [{"name": "OUTPUT_FP16"}]},
        b"\0\0",
        model="types",
    ),
    "raw string": with_binary(b"", b"hello", 0, "word"),
    "raw floats": with_binary(b"", bytes(16), 0, "identity_fp32"),
    "raw, unbatched": with_binary(b"", bytes(16), 0, "plain"),
    "raw, odd size": with_binary(b"", bytes(15), 0, "identity_fp32"),
    "raw, nothing": with_binary(b"", b"", 0, "identity_fp32"),
    "raw, two inputs": with_binary(b"", bytes(64), 0),
    "raw, optional inputs": with_binary(b"", bytes(64), 0, "types"),
    "one output": chosen({"name": "OUTPUT1"}),
    "outputs turned round": chosen({"name": "OUTPUT1"}, {"name": "OUTPUT0"}),
    "doubled output": chosen({"name": "OUTPUT0"}, {"name": "OUTPUT0"}),
    "unknown output": chosen({"name": "OUTPUT9"}),
    "output without a name": chosen({}),
    "no outputs": infer("sums", sums(outputs=[])),
    "unknown output parameter": chosen({"name": "OUTPUT0", "parameters": {"mine": 1}}),
    **{
        f"{count} classes": chosen({"name": "OUTPUT0", "parameters": {"classification": count}})
        for count in (1, 3, 16, 17, 1000000, 1000001, 2**31, 2**32, 2**63)
    },
    "classes of an output without labels": chosen({"name": "OUTPUT1", "parameters": {"classification": 2}}),
    "classes in binary": chosen(
        {"name": "OUTPUT0", "parameters": {"classification": 2, "binary_data": True}}
    ),
    "classes of a batch": infer(
        "sums",
        {
            "inputs": [tensor(f"INPUT{i}", "INT32", [2, 16], data=ROW * 2) for i in range(2)],
            "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}],
        },
    ),
    "classes of strings": infer(
        "word",
        one("IN", "BYTES", [1, 1], data=["a"])
        | {"outputs": [{"name": "OUT", "parameters": {"classification": 1}}]},
    ),
    "classes and shared memory": chosen(
        {
            "name": "OUTPUT0",
            "parameters": {"classification": 1, "shared_memory_region": "r", "shared_memory_byte_size": 64},
        }
    ),
    "binary and shared memory": chosen(
        {
            "name": "OUTPUT0",
            "parameters": {"binary_data": True, "shared_memory_region": "r", "shared_memory_byte_size": 64},
        }
    ),
    "unknown shared memory": chosen(
        {"name": "OUTPUT0", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 64}}
    ),
    "unknown shared memory without a size": chosen(
        {"name": "OUTPUT0", "parameters": {"shared_memory_region": "r"}}
    ),
    "input of unknown shared memory": infer(
        "sums", first_input(data=..., parameters={"shared_memory_region": "r", "shared_memory_byte_size": 64})
    ),
    "data and shared memory": infer(
        "sums", first_input(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 64})
    ),
    "every parameter": infer(
        "sums", sums(parameters={"a": 1, "b": -1, "c": True, "d": "s", "e": 1.5, "f": 2**63})
    ),
    "gzip": infer("sums", PACKED, **{ENCODING: "gzip"}),
    "deflate": infer("sums", zlib.compress(json.dumps(sums()).encode()), **{ENCODING: "deflate"}),
    "gzip that is deflate": infer("sums", zlib.compress(b"{}"), **{ENCODING: "gzip"}),
    "gzip that is none": infer("sums", sums(), **{ENCODING: "gzip"}),
    "gzip cut short": infer("sums", PACKED[:-12], **{ENCODING: "gzip"}),
    "gzip with a tail": infer("sums", PACKED + b"tail", **{ENCODING: "gzip"}),
    "two gzips": infer("sums", PACKED + PACKED, **{ENCODING: "gzip"}),
    "gzip of nothing": infer("sums", gzip.compress(b"", mtime=0), **{ENCODING: "gzip"}),
    "gzip, empty": infer("sums", b"", **{ENCODING: "gzip"}),
    "deflate without a head": infer("sums", zlib.compress(b"{}")[2:-4], **{ENCODING: "deflate"}),
    **{
        f"coding {coding!r}": infer("sums", sums(), **{ENCODING: coding})
        for coding in ("identity", "br", "GZIP", "", "gzip, deflate")
    },
    **{
        f"accept {coding!r}": infer("sums", sums(), **{"Accept-Encoding": coding})
        for coding in ("identity", "br", "*", "gzip;q=0", "gzip;q=x")
    },
    "decoupled": infer("square_int32", one("IN", "INT32", [1], data=[1])),
    **{
        f"model fails: {way}": infer("fails", one("IN", "BYTES", [1], data=[way]))
        for way in (
            "UNKNOWN",
            "INTERNAL",
            "NOT_FOUND",
            "INVALID_ARG",
            "UNAVAILABLE",
            "UNSUPPORTED",
            "ALREADY_EXISTS",
            "plain",
            "none",
        )
    },
    "sequence, one request": sequence(1, True, True),
    "sequence, no id": infer("adder", one("INPUT", "INT32", [1, 1], data=[1])),
    "sequence, id 0": sequence(0, True, True),
    "sequence, empty id": sequence("", True, True),
    "sequence, text id": sequence("abc", True, True),
    "sequence, text id of digits": sequence("12", True, True),
    "sequence, long text id": sequence("a" * 129, True, True),
    "sequence, not started": sequence(77, False, False),
    "sequence, ended without start": sequence(77, False, True),
    "sequence, batch of two": infer(
        "adder",
        one("INPUT", "INT32", [2, 1], data=[1, 2])
        | {"parameters": {"sequence_id": 5, "sequence_start": True, "sequence_end": True}},
    ),
}
