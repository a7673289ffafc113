"""The command line and values of requests."""

import json
from pathlib import Path

import numpy as np
import pytest

from nereid_client import Signature, TensorSpec
from nereid_client.tools.perf.bench import check_fits
from nereid_client.tools.perf.command.flags import read_options
from nereid_client.tools.perf.command.run import main
from nereid_client.tools.perf.generator.job import Level
from nereid_client.tools.perf.inputs import read_expected, read_inputs
from nereid_client.tools.perf.options import Options, PerfError, read_address, read_levels, read_shape

SIGNATURE = Signature(
    {
        "X": TensorSpec("X", "FP32", (-1, -1, 2)),
        "S": TensorSpec("S", "BYTES", (-1, 1)),
        "O": TensorSpec("O", "INT32", (-1, 1), optional=True),
    },
    {"Y": TensorSpec("Y", "FP32", (-1, 2))},
    batched=True,
)


def options(*words: str) -> Options:
    return read_options(["-m", "m", *words])[0]


def test_flags_of_perf_analyzer_are_understood() -> None:
    made = options(
        *("-x", "2", "-u", "host:1234", "-i", "gRPC", "-b", "4", "--concurrency-range", "1:7:3", "--async"),
        *("-p", "2000", "-s", "5", "-r", "4", "--percentile=99", "--shape", "X:3,2", "--max-threads", "8"),
        *("-H", "K: v", "--streaming", "--input-data", "zero", "--measurement-mode", "time_windows"),
    )
    assert made.version == "2" and made.address.url == "grpc://host:1234" and made.batch == 4
    assert made.levels == tuple(Level("concurrency", n) for n in (1, 4, 7))
    assert (made.window_s, made.stability, made.windows, made.percentile) == (2.0, 0.05, 4, 99)
    assert made.shapes == {"X": (3, 2)} and made.headers == {"K": "v"} and made.streaming


def test_binary_search_is_an_objective() -> None:
    assert options("-l", "20", "--binary-search", "--percentile", "95").slo == "p95<20ms"
    assert options("--slo", "p99<5ms").slo == "p99<5ms"
    with pytest.raises(PerfError, match="give -l MS"):
        options("--binary-search")


@pytest.mark.parametrize("flag", ["--json", "-f", "--html", "--profile-export-file"])
def test_files_that_cannot_be_written_are_found_before_the_run(tmp_path: Path, flag: str) -> None:
    with pytest.raises(PerfError, match=r"cannot write .*: no such directory"):
        options(flag, str(tmp_path / "no" / "file"))
    with pytest.raises(PerfError, match=r"cannot write .*: a directory"):
        options(flag, str(tmp_path))
    options(flag, str(tmp_path / "file"))


def test_what_every_request_would_be_refused_for_is_found_before_the_run() -> None:
    check_fits(options("-b", "8"), {"max_batch_size": 8}, False)
    check_fits(options(), {"sequence_batching": {}}, True)
    with pytest.raises(PerfError, match="takes 8 rows at most: -b 9"):
        check_fits(options("-b", "9"), {"max_batch_size": 8}, False)
    with pytest.raises(PerfError, match="--num-of-sequences"):
        check_fits(options(), {"sequence_batching": {}}, False)


def test_loads_are_read() -> None:
    assert [level.value for level in read_levels("rate", "0.5,100")] == [0.5, 100]
    assert [level.value for level in read_levels("rate", "10:20:5")] == [10, 15, 20]
    for text in ("", "0", "x", "5:1:1", "1:2:0", "1:2:3:4", "1:1e9:1"):
        with pytest.raises(PerfError, match="is no load"):
            read_levels("rate", text)
    with pytest.raises(PerfError, match="whole"):
        read_levels("concurrency", "1.5")


def test_addresses_are_read() -> None:
    assert read_address("localhost", "grpc").url == "grpc://localhost:8001"
    assert read_address("https://host", "grpc").url == "https://host:8000"
    assert read_address("[::1]:5", "http").host == "::1"
    with pytest.raises(PerfError):
        read_address("a b", "http")


def test_shapes_are_read() -> None:
    assert read_shape("a:b:1,2") == ("a:b", (1, 2))
    with pytest.raises(PerfError):
        read_shape("a")


def test_values_are_drawn() -> None:
    [[step]] = read_inputs(options("--shape", "X:3,2", "-b", "2", "--string-length", "5"), SIGNATURE)
    assert step["X"].shape == (2, 3, 2) and step["X"].dtype == np.float32 and step["X"].std() > 0
    assert step["S"].shape == (2, 1) and len(step["S"][0, 0]) == 5 and "O" not in step
    [[zeros]] = read_inputs(options("--shape", "X:1,2", "-z"), SIGNATURE)
    assert not zeros["X"].any() and zeros["S"][0, 0] == b""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "give its size, e.g. --shape=X:8,2"),
        (("--shape", "X:3,3"), "has the shape"),
        (("--shape", "Z:1"), "no input 'Z'"),
    ],
)
def test_shape_that_is_missing_or_wrong_is_told(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(PerfError, match=text):
        read_inputs(options(*words), SIGNATURE)


def test_values_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    raw = {"X": {"b64": "AACAPwAAAEA=", "shape": [1, 2]}, "S": {"b64": "/9j/"}}
    flat = {"X": {"content": [1, 2, 3, 4], "shape": [2, 2]}, "S": ["a"], "O": [7]}
    content = {"data": [[flat, raw], [{"X": [[5, 6]], "S": ["b"]}]], "validation_data": [[{"Y": [1, 2]}] * 2]}
    file.write_text(json.dumps(content))
    (one, two), (three,) = read_inputs(options("--input-data", str(file)), SIGNATURE)
    assert (
        one["X"].tolist() == [[[1, 2], [3, 4]]]
        and one["S"].tolist() == [[b"a"]]
        and one["O"].tolist() == [[7]]
    )
    assert two["X"].tolist() == [[[1, 2]]] and two["S"].tolist() == [[b"\xff\xd8\xff"]]
    assert three["X"].tolist() == [[[5, 6]]]
    assert [step["Y"].tolist() for step in read_expected(file, SIGNATURE, 1)[0]] == [[[1, 2]]] * 2


def test_values_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "X").write_bytes(np.array([1, 2, 3, 4], np.float32).tobytes())
    (tmp_path / "S").write_bytes(b"text")
    [[step]] = read_inputs(options("--input-data", str(tmp_path), "--shape", "X:2,2"), SIGNATURE)
    assert step["X"].tolist() == [[[1, 2], [3, 4]]] and step["S"].tolist() == [[b"text"]]


@pytest.mark.parametrize(
    "content", ['{"data": []}', "[]", '{"data": [{"Z": [1]}]}', '{"data": [{"X": ["a"]}]}']
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "in.json"
    file.write_text(content)
    with pytest.raises(PerfError, match=r"in\.json"):
        read_inputs(options("--input-data", str(file)), SIGNATURE)


def test_file_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(PerfError) as told:
        read_inputs(options("--input-data", str(tmp_path / "no.json")), SIGNATURE)
    assert str(told.value) == f"{tmp_path / 'no.json'}: No such file or directory"


def test_file_without_steps_is_told(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"dat": []}')
    with pytest.raises(PerfError, match=r"in\.json: no 'data'"):
        read_inputs(options("--input-data", str(tmp_path / "in.json")), SIGNATURE)


@pytest.mark.parametrize("words", [["--rate", "abc"], ["--slo", "p99<20 mss"], ["--shape", "X"]])
def test_a_wrong_command_line_has_a_status_of_its_own(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "m", "-u", "localhost:1", *words]) == 2
    assert "nereid perf: " in capsys.readouterr().err
