"""The cells of the comparison whose requests differ, and those beside a neighbour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import neighbours, report
from benchmarks.load import NOTHING, LoadResult, closed
from benchmarks.measure import Measurement
from benchmarks.neighbours import Beside
from benchmarks.processes import Usage
from benchmarks.repository import (
    STRINGS,
    STRINGS_ONNX,
    TWO_STEPS,
    bench_repository,
    cpp_backends,
    cpp_repository,
    differing_repository,
)
from benchmarks.traffic import HEADS, TENSORS, differing_workloads, heads, strings, two_steps
from benchmarks.workloads import Workload, decode_binary, read_config, wire_bytes

LIKE = Workload("like", "m", {"INPUT0": np.ones((1, 16), np.float32)}, ("OUTPUT0",))
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    examples = tmp_path_factory.mktemp("examples")
    for model in ("identity_fp32", "simple", STRINGS, "repeat_int32"):
        (examples / model / "1").mkdir(parents=True)
        (examples / model / "config.pbtxt").write_bytes(
            (ROOT / "model_repository" / model / "config.pbtxt").read_bytes()
        )
        (examples / model / "1" / "model.py").touch()
    return differing_repository(
        examples, bench_repository(examples, tmp_path_factory.mktemp("bench") / "models")
    )


def test_heads_of_http_requests_differ_and_have_one_length() -> None:
    http, timed, named = heads(LIKE)
    payloads = closed(http, "http", 8000, 1).payloads
    assert len(set(payloads)) == HEADS and len(set(map(len, payloads))) == 1
    assert all(b"traceparent: 00-" in each and b"x-request-id: " in each for each in payloads)
    for workload in (timed, named):
        varied = closed(workload, "grpc", 8001, 1).endpoint.varied
        assert len(set(varied)) == HEADS
    assert closed(LIKE, "grpc", 8001, 1).endpoint.varied == ()


def test_tensors_differ() -> None:
    random = np.random.default_rng(0)
    for workload in (two_steps(random), strings(random, "onnx", STRINGS_ONNX)):
        for protocol in ("http", "grpc"):
            assert len(set(closed(workload, protocol, 8000, 1).payloads)) == TENSORS


def test_strings_are_encoded_as_both_extensions_have_them() -> None:
    workload = strings(np.random.default_rng(0), "onnx", STRINGS_ONNX)
    array = workload.inputs["INPUT0"]
    assert len(wire_bytes(array)) == 100 * 24
    body, length = workload.http_body()
    header = json.loads(body[:length])
    header["outputs"] = header["inputs"]
    assert np.array_equal(decode_binary(header, body[length:])["INPUT0"], array)
    text = json.loads(workload.as_json().http_body()[0])
    assert np.array_equal(decode_binary({"outputs": text["inputs"]}, b"")["INPUT0"], array)


def test_every_differing_cell_has_a_model(bench: Path) -> None:
    names = {each.name for each in differing_workloads(bench)}
    assert names >= {"heads_differ", "timeout_differs", "metadata_differ", "json_16", "json_10000"}
    assert names >= {"two_steps", "strings_onnx", "strings_python", "identity_10KB", "identity_100KB"}
    assert [each.key for each in neighbours.all_neighbours(bench)] == [
        "beside json_10000 x1",
        "beside json_10000 x4",
        "beside identity_600KB x2",
        "beside compressed x2",
        "beside stream x1",
        "beside 1000 idle",
    ]


def test_native_side_has_c_backends_but_for_what_is_compared_in_python(bench: Path, tmp_path: Path) -> None:
    backends, python = tmp_path / "given", tmp_path / "wheel"
    for backend in ("identity", "onnxruntime"):
        (backends / backend).mkdir(parents=True)
        (backends / backend / f"libtriton_{backend}.so").touch()
    (python / "python").mkdir(parents=True)
    made = cpp_repository(bench, tmp_path / "cpp", backends)
    asked = {model.name: read_config(made, model.name) for model in made.iterdir()}
    assert {name: config.backend or config.platform for name, config in asked.items()} == {
        "identity_fp32": "identity",
        "simple": "onnxruntime",
        STRINGS_ONNX: "onnxruntime",
        TWO_STEPS: "ensemble",
        STRINGS: "python",
        "repeat_int32": "python",
    }
    every = cpp_backends(backends, python, tmp_path / "every")
    assert sorted(each.name for each in every.iterdir()) == ["identity", "onnxruntime", "python"]


def load(rate: float, p99: float) -> LoadResult:
    return LoadResult(rate, p99 / 2, p99, 100, NOTHING.failures, NOTHING.texts)


def test_ratios_of_rates_and_tails_are_paired_by_round() -> None:
    measured = [
        Measurement("c", server, round_, load(rate, p99), 1.0, {"r": Usage(1.0, 10.0)})
        for round_, (ours, its) in enumerate([((100, 2), (200, 1)), ((300, 3), (100, 1))])
        for server, (rate, p99) in (("nereid", ours), ("triton", its))
    ]
    assert report.cell_rows(measured)[1][-2:] == ["2.50x (2.00-3.00)", "1.75x (0.50-3.00)"]


def test_a_neighbour_is_told_by_what_is_kept_beside_it() -> None:
    measured = [
        Beside("beside x", "nereid", round_, load(100, 1), load(kept, 4), load(7, 9))
        for round_, kept in enumerate((50, 20, 10))
    ]
    ((*row, errors),) = neighbours.rows(measured)
    assert row == ["beside x", "nereid", "7.0", "100", "20", "0.20", "1.00", "4.00", "4.0"]
    assert errors == ""
