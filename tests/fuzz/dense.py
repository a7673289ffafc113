"""Long inputs of what costs most for its bytes: what is in front, what is repeated, and what is behind."""

from tests.fuzz.migrations import archived
from tests.fuzz.target import LIMIT

_FORM = b"multipart/form-data; boundary=xyz\n"
_PART = b'--xyz\r\nContent-Disposition: form-data; name="a"'
_INPUT = b'{"name":"a","shape":[1],"datatype":"INT8","data":[1]},'
_SERVICE = (
    b"{kind: InferenceService, metadata: {name: m}, spec: {predictor: {sklearn: {storageUri: a}}}}\n---\n"
)
_FIRST = b"\xff\x1f"
"""Of `http_learned`: 8191 bytes of JSON, which is as much as is learned from."""

_DENSE = {
    "http_infer": (
        (b'\0\0{"inputs":[{"name":"I","shape":[1,1],"datatype":"INT32","data":[', b"1,", b"1]}]}"),
        (b'\0\0{"inputs":[{"name":"S","shape":[1,1],"datatype":"BYTES","data":[', b'"",', b'""]}]}'),
        (b'\0\0{"inputs":[{"name":"I","shape":[1],"datatype":"INT32","data":[', b"[],", b"1]}]}"),
        (b'\0\0{"inputs":[{"name":"I","shape":[', b"1,", b'1],"datatype":"INT32","data":[1]}]}'),
        (b'\0\0{"inputs":[', _INPUT, b"{}]}"),
        (b'\0\0{"parameters":{', b'"\\ud800":1,', b'"b":1}}'),
        (b'\0\0{"id":"', b"\\\\", b'\\ud800"}'),
    ),
    "http_generate": (
        (b"{", b'"a":1,', b'"b":1}'),
        (b'{"parameters":{', b'"a":1,', b'"b":1}}'),
        (b'{"I":[', b"[],", b"1]}"),
        (b'{"S":[', b'"",', b"1]}"),
    ),
    "http_head": (
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n", b""),
        (b"GET /", b"%41", b" HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nAccept-Encoding: ", b"gzip;q=0.5,", b""),
    ),
    "http2_headers": (
        (b"\xff\xff", b"\x82", b""),
        (b"\xff\xff\x40\x01a\x7f\xff\x1f" + b"b" * 4000, b"\xbe", b""),
    ),
    "grpc_infer": ((b"", b"\x2a\x00", b""), (b"", b"\x32\x00", b""), (b"", b"\x22\x02\x0a\x00", b"")),
    "config_pbtxt": (
        (b"", b"a{", b""),
        (b"", b'input { name: "a" dims: [1] }\n', b""),
        (b"", b"instance_group { count: 1000000 }\n", b""),
        (b'name: "', b"\\n", b'"'),
    ),
    "token_file": ((b"", b"#\n", b""), (b"name=a models=", b"*a", b"\n"), (b"name=a models=", b"*,", b"\n")),
    "http_learned": (
        (_FIRST + b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT8","data":[', b"1,", b"1]}]}"),
        (
            _FIRST + b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"BYTES","data":[',
            b'"",',
            b'""]}]}',
        ),
        (_FIRST + b'{"inputs":[', _INPUT, b"{}]}"),
        (_FIRST + b'{"parameters":{"a":"', b' \\"id\\" : \\"', b'"}}'),
        (_FIRST, b"[", b""),
        (_FIRST, b'{"inputs":', b""),
    ),
    "grpc_learned": (
        (b"\xff\x7f", b"\x2a\x00", b""),
        (b"\xff\x7f", b"\x2a\x03\x0a\x01a", b""),
        (b"\xff\x7f", b"\x3a\x00", b""),
        (b"\xff\x7f\x2a\xff\xff\x01", b"\x18\x01", b""),
    ),
    "tfserving_rest": (
        (b'p{"inputs":{"I":[', b"1,", b"1]}}"),
        (b'p{"inputs":{"I":[', b"1e308,", b'"a"]}}'),
        (b'p{"inputs":{"I":[', b"[[]],", b"[[]]]}}"),
        (b'p{"inputs":{"S":[', b'"",', b'""]}}'),
        (b'p{"inputs":{"S":[', b'{"b64":""},', b'""]}}'),
        (b'p{"instances":[', b'{"I":[],"B":1},', b'{"I":[],"B":1}]}'),
        (b"p", b"[", b""),
        (b"p", b'{"a":', b""),
        (b'e{"examples":[', b"{},", b"{}]}"),
        (b'e{"examples":[', b'{"":1},', b"{}]}"),
        (b'e{"examples":[{"x":[', b'"",', b'""]}]}'),
        (b'e{"context":{"a":"' + b"a" * 500 + b'"},"examples":[', b"{},", b"{}]}"),
        (b'e{"context":{"a":"' + b"a" * 30000 + b'"},"examples":[', b"{},", b"{}]}"),
    ),
    "tfserving_grpc": (
        (b"p", b"\x1a\x00", b""),
        (b"p", b"\x12\x02\x0a\x00", b""),
        (b"p\x12\xff\xff\x03\x0a\x01S\x12\xf9\xff\x03\x08\x07", b"\x42\x00", b""),
        (b"m", b"\x0a\x05\x0a\x03\x0a\x01m", b""),
        (b"e\x0a\x03\x0a\x01m\x12\xf0\xff\x03\x0a\xec\xff\x03", b"\x0a\x00", b""),
    ),
    "torchserve_body": (
        (_FORM, _PART + b"\r\n\r\n\r\n", b"--xyz--"),
        (_FORM, _PART + b';a="\\"' * 30 + b"\r\n\r\n\r\n", b"--xyz--"),
        (_FORM, _PART + b"\r\na:b" * 7 + b"\r\n\r\n\r\n", b"--xyz--"),
        (_FORM + _PART + b"\r\n\r\n", b"\r\n--xy", b"--xyz--"),
        (_FORM + _PART + b"\r\n\r\n", b"\r\n--xyz ", b"--xyz--"),
        (_FORM + _PART + b"\r\n\r\n", b"\r\n--xyz-", b"--xyz--"),
        (b"application/x-www-form-urlencoded\na=", b"%41", b""),
        (b"multipart/form-data; boundary=", b';a="', b"\n"),
    ),
    "migrated": (
        (b"k[", b"a,", b"]"),
        (b"k", b"[", b""),
        (b"k", b"a: b\n", b""),
        (b"k", b"---\n", b""),
        (b"k{a: &a [*a]", b",*a", b"}"),
        (b"k", _SERVICE, b""),
        (b"f", b"a {", b""),
        (b'pmodels={"b":{}', b',"a":{"b":{"marName":"c"}}', b"}\n"),
        (b"g", b"\x12\x04\x2a\x02\x0a\x00", b""),
    ),
    "sagemaker_models": (
        (b"\0a\n", b"[", b""),
        (b"\0a\n", b'{"a":', b""),
        (b"\0a\n{", b'"a":1,', b'"b":1}'),
        (b'\0a\n{"model_name":"a","url":"/opt/ml/models', b"/a/..", b'/a/model"}'),
        (b"\4", b"a", b"\n"),
    ),
}

_UNPACKED = 4 << 20
"""Bytes of a document of an archive."""
_PACKED = (
    archived(b"[" + b"[]," * (_UNPACKED // 3 - 1) + b"0]", b""),
    archived(
        b'{"x":[' + b"[]," * (_UNPACKED // 3 - 40) + b'0],"model":{"modelName":"m","handler":"h.py"}}', b""
    ),
    *(
        archived(
            b'{"model":{"modelName":"m","handler":"h.py","configFile":"m.yaml"}}',
            text * (_UNPACKED // len(text)),
        )
        for text in (b"[", b"- a\n", b"a: b\n", b"---\n", b" ", b"[&a a,")
    ),
)

DENSE = {
    name: tuple(
        front + repeated * ((LIMIT - len(front + end)) // len(repeated)) + end
        for front, repeated, end in rows
    )
    for name, rows in _DENSE.items()
}
"""Inputs by target."""
DENSE["migrated"] += tuple(b"z" + packed for packed in _PACKED)
