"""Comparing answers of two servers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nereid.migrate import verify
from nereid.migrate.plan import MigrationError
from tests.server import free_port


@contextmanager
def server(answers: dict[str, Any]) -> Iterator[tuple[str, list[bytes]]]:
    """Serve answers by path; yield the address and the bodies that come."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            answer = answers.get(self.path)
            self.send_response(404 if answer is None else 200)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{served.server_port}", bodies
        finally:
            served.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ({"a": [1.0, 0.1]}, {"a": [1, 0.1000001]}, ""),
        ({"a": [1.0]}, {"a": [1.01]}, "answer.a[0]: 1.0 and 1.01"),
        ({"a": 1}, {"b": 1}, "answer: {'a': 1} and {'b': 1}"),
        ([1], [1, 2], "answer: [1] and [1, 2]"),
        ([True], [0], "answer[0]: True and 0"),
        (["a"], ["b"], "answer[0]: a and b"),
        ([float("nan")], [float("nan")], ""),
    ],
)
def test_answers_are_compared_number_by_number(old: Any, new: Any, where: str) -> None:
    assert verify.difference(json.dumps(old).encode(), json.dumps(new).encode()) == where


def test_answers_that_are_no_json_are_compared_as_bytes() -> None:
    assert verify.difference(b"\xff", b"\xff") == "" and verify.difference(b"\xff", b"\xfe1") != ""


METADATA = {
    "metadata": {"signature_def": {"signature_def": {"serving_default": {"inputs": {
        "x": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "3"}]}},
        "n": {"dtype": "DT_INT64", "tensor_shape": {}},
        "s": {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": "-1"}]}},
    }}}}}
}  # fmt: skip


def test_a_prediction_is_made_up_of_the_metadata() -> None:
    with server({"/v1/models/m/metadata": METADATA}) as (old, _):
        request = verify.tfserving_request("m", old)
    inputs = json.loads(request.body)["inputs"]
    assert [len(inputs["x"]), len(inputs["x"][0]), len(inputs["s"])] == [2, 3, 2]
    assert isinstance(inputs["n"], int) and isinstance(inputs["s"][0], str)


def test_both_servers_get_the_same_request(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    request = verify.torchserve_request("m", tmp_path / "a.json")
    path = "/predictions/m"
    with server({path: [0.5]}) as (old, one), server({path: [0.50000001]}) as (new, other):
        assert verify.compare("m", request, old, new) == verify.Comparison("m", path, "")
        assert one == other == [b"[1]"]
    with server({path: [1]}) as (old, _), server({}) as (new, _):
        assert "answers with 404" in verify.compare("m", request, old, new).difference
    closed = f"127.0.0.1:{free_port()}"
    refused = f"http://{closed}{path} does not answer: Connection refused"
    assert verify.compare("m", request, closed, closed).difference == refused


@pytest.mark.parametrize(("limit", "rows"), [(0, 16), (4, 4), (64, 16)])
def test_v2_answers_are_compared_by_output(limit: int, rows: int) -> None:
    described = {
        "/v2/models/m": {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1, 3]}],
            "outputs": [{"name": "y"}],
        },
        "/v2/models/m/config": {"max_batch_size": limit},
    }
    old = {
        "model_name": "m",
        "outputs": [{"name": "y", "shape": [2], "data": [1, 2], "parameters": {"a": "b"}}],
    }
    new = {"model_name": "m", "model_version": "1", "outputs": [{"name": "y", "shape": [2], "data": [1, 2]}]}
    path = "/v2/models/m/infer"
    with server({path: old}) as (one, bodies), server({path: new, **described}) as (other, _):
        assert verify.compare_v2("m", verify.v2_request("m", other), one, other).difference == ""
        sent = json.loads(bodies[0])
        assert sent["inputs"][0]["shape"] == [rows, 2, 3] and sent["outputs"] == [{"name": "y"}]
        assert len(sent["inputs"][0]["data"]) == rows * 6 and len(set(sent["inputs"][0]["data"])) > rows


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"y": 1, "more": 2}, ""),  # MLServer answers one output of a request that names none
        ({"y": 2}, "answer.y[1][0]: 1 and 2"),
        ({"z": 1}, "answer: {'y': [[1], [1]]} and {}"),
    ],
)
def test_every_output_of_the_old_server_has_to_be_there(outputs: dict[str, int], text: str) -> None:
    old, new = (
        {"outputs": [{"name": name, "shape": [1], "data": [value]} for name, value in each.items()]}
        for each in ({"y": 1}, outputs)
    )
    path = "/v2/models/m/infer"
    with server({path: old}) as (one, _), server({path: new}) as (other, _):
        request = verify.Request(path, b'{"inputs": []}')
        assert verify.compare_v2("m", request, one, other).difference == text


def test_only_http_addresses_are_asked() -> None:
    for url in ("file:///etc/passwd?", "ftp://127.0.0.1:1/"):
        with pytest.raises(MigrationError, match="is no http:// or https:// address"):
            verify.ask(url, verify.Request("", b""))
