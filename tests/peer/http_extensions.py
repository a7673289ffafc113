"""Requests of the extensions: generate, repository, shared memory, trace and log settings."""

from tests.contract.wire import JSON_LENGTH
from tests.peer.http_requests import ROW, Request, generate, load, region

ENCODING = "Content-Encoding"

TRACE_SETTINGS: list[object] = [
    b"",
    b"{",
    {},
    {"trace_rate": "x"},
    {"trace_rate": 5},
    {"trace_rate": "0"},
    {"trace_count": "-2"},
    {"trace_count": "x"},
    {"trace_level": ["OFF", "TIMESTAMPS"]},
    {"trace_level": "OFF"},
    {"trace_level": ["X"]},
    {"trace_level": []},
    {"trace_file": "/tmp/x"},
    {"mine": "1"},
    {"log_frequency": "-1"},
    {"log_frequency": "x"},
    {"trace_rate": ["1", "2"]},
    {"trace_mode": "x"},
]

EXTENSIONS: dict[str, Request] = {
    "generate": generate("word", {"IN": "hello"}),
    "generate, id and parameters": generate(
        "word", {"IN": ["hello"], "id": "7", "parameters": {"a": 1, "b": True, "c": "s", "d": 1.5}}
    ),
    "generate, loose parameters": generate("word", {"IN": "hello", "temperature": 0.5, "stop": False}),
    "generate, nested parameter": generate("word", {"IN": "hello", "other": {"a": 1}}),
    "generate, list parameter": generate("word", {"IN": "hello", "other": [1]}),
    "generate, null parameter": generate("word", {"IN": "hello", "other": None}),
    "generate, nothing": generate("word", {}),
    "generate, no object": generate("word", [1]),
    "generate, empty": generate("word", b""),
    "generate, bad JSON": generate("word", b"{"),
    "generate, parameters no object": generate("word", {"IN": "hello", "parameters": 1}),
    "generate, number for a string": generate("word", {"IN": 1}),
    "generate, null": generate("word", {"IN": None}),
    "generate, nested": generate("word", {"IN": [["hello"]]}),
    "generate, object": generate("word", {"IN": {"a": 1}}),
    "generate, two strings": generate("word", {"IN": ["a", "b"]}),
    "generate, empty list": generate("word", {"IN": []}),
    "generate, mixed list": generate("word", {"IN": ["a", 1]}),
    "generate, id of a number": generate("word", {"IN": "a", "id": 7}),
    "generate, sums": generate("sums", {"INPUT0": ROW, "INPUT1": ROW}),
    "generate, missing input": generate("sums", {"INPUT0": ROW}),
    "generate, too short": generate("sums", {"INPUT0": ROW[:4], "INPUT1": ROW}),
    "generate, plain": generate("plain", {"IN": [1, 2, 3, 4]}),
    "generate, plain, scalar": generate("plain", {"IN": 1}),
    "generate, plain, odd": generate("plain", {"IN": [1, 2, 3]}),
    "generate, float for an integer": generate("sums", {"INPUT0": [1.5] * 16, "INPUT1": ROW}),
    "generate, unknown model": generate("nobody", {"IN": "a"}),
    "generate, unknown version": Request("POST", "/v2/models/word/versions/9/generate", {"IN": "a"}),
    "generate, reserved parameter": generate("word", {"IN": "a", "triton_x": 1}),
    "generate, coding": generate("word", {"IN": "a"}, False, **{ENCODING: "gzip"}),
    "generate, identity": generate("word", {"IN": "a"}, False, **{ENCODING: "identity"}),
    "generate, header length": generate("word", {"IN": "a"}, False, **{JSON_LENGTH: "3"}),
    "generate, failing": generate("fails", {"IN": "INVALID_ARG"}),
    **{f"generate {count} responses": generate("square_int32", {"IN": count}) for count in (0, 1, 2)},
    **{
        f"generate_stream {count} responses": generate("square_int32", {"IN": count}, stream=True)
        for count in (0, 1, 2)
    },
    **{
        f"generate{'_stream' * stream} answered by '{letters}' of {model}": generate(
            model, {"IN": letters}, stream=stream
        )
        for model in ("script", "chain")
        for letters in ("", "r", "R", "rR", "e", "E", "re", "rE", "eR", "eE", "reR")
        for stream in (False, True)
    },
    **{
        f"generate{'_stream' * stream}, too late for {model}": generate(model, {"IN": "a"}, stream=stream)
        for model in ("late", "relay")
        for stream in (False, True)
    },
    "generate_stream": generate("word", {"IN": "hello", "id": "7"}, stream=True),
    "generate_stream, nothing": generate("word", {}, stream=True),
    "generate_stream, bad JSON": generate("word", b"{", stream=True),
    "generate_stream, unknown model": generate("nobody", {}, stream=True),
    "generate_stream, failing": generate("fails", {"IN": "NOT_FOUND"}, stream=True),
    "index of nobody": Request("POST", "/v2/repository/other/index", b""),
    "index, ready no bool": Request("POST", "/v2/repository/index", {"ready": 1}),
    "index, bad JSON": Request("POST", "/v2/repository/index", b"{"),
    "load nobody": load("nobody"),
    "load with a repository": Request("POST", "/v2/repository/r/models/sums/load"),
    "unload with a repository": Request("POST", "/v2/repository/r/models/sums/unload"),
    "load, bad JSON": load("sums", b"{"),
    "load, unknown parameter": load("sums", {"parameters": {"mine": "a"}}),
    "load, config no string": load("sums", {"parameters": {"config": 1}}),
    "load, config no JSON": load("sums", {"parameters": {"config": "x"}}),
    "load, config of an unknown field": load("sums", {"parameters": {"config": '{"mine":1}'}}),
    "load, config of another name": load("sums", {"parameters": {"config": '{"name":"other"}'}}),
    "load, file without config": load("sums", {"parameters": {"file:1/model.py": "YQ=="}}),
    "load, file that leaves": load("sums", {"parameters": {"config": "{}", "file:../a": "YQ=="}}),
    "load, file no string": load("sums", {"parameters": {"config": "{}", "file:1/model.py": 1}}),
    "load, parameters no object": load("sums", {"parameters": 1}),
    "unload nobody": Request("POST", "/v2/repository/models/nobody/unload"),
    "unload, unload_dependents no bool": Request(
        "POST", "/v2/repository/models/nobody/unload", {"parameters": {"unload_dependents": 1}}
    ),
    "unload, unknown parameter": Request(
        "POST", "/v2/repository/models/nobody/unload", {"parameters": {"mine": 1}}
    ),
    **{
        f"register {body!r}": region("register", body)
        for body in (
            b"",
            b"{",
            {},
            {"key": "/k"},
            {"key": "/k", "byte_size": 1},
            {"key": 1, "byte_size": 1},
            {"key": "/k", "byte_size": -1},
            {"key": "/k", "byte_size": "1"},
            {"key": "/k", "offset": "a", "byte_size": 1},
            {"byte_size": 1},
            {"key": "", "byte_size": 1},
            {"key": "triton_python_backend_shm_region_1", "byte_size": 1},
            {"key": "/triton_python_backend_shm_region_1", "byte_size": 1},
        )
    },
    **{
        f"register CUDA {body!r}": region("register", body, kind="cuda")
        for body in (
            b"",
            {},
            {"raw_handle": {"b64": "YQ=="}},
            {"raw_handle": {"b64": "YQ=="}, "device_id": 0, "byte_size": 1},
            {"raw_handle": 1, "device_id": 0, "byte_size": 1},
        )
    },
    "unregister unknown": region("unregister"),
    "unregister all": region("unregister", name=""),
    "unregister all CUDA": region("unregister", name="", kind="cuda"),
    **{f"trace {document!r}": Request("POST", "/v2/trace/setting", document) for document in TRACE_SETTINGS},
    "trace of nobody": Request("POST", "/v2/models/nobody/trace/setting", {"trace_rate": "1"}),
    **{
        f"logging {document!r}": Request("POST", "/v2/logging", document)
        for document in (
            b"",
            b"{",
            {},
            {"log_info": 1},
            {"log_info": "x"},
            {"log_verbose_level": "1"},
            {"log_verbose_level": -1},
            {"log_format": "x"},
            {"log_format": 1},
            {"log_file": "/tmp/x"},
            {"mine": 1},
            [1],
            {"log_verbose_level": 1.5},
            {"log_info": True},
        )
    },
}
