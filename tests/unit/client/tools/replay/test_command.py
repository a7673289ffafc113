"""`nereid replay` against an engine's fronts."""

import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from nereid_client.tape.records import MAGIC
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from nereid_client.tools.perf import machine
from nereid_client.tools.replay.command import main
from tests.unit.client.serving import Addresses, serve
from tests.unit.client.tape.made import row, write
from tests.unit.nereid.engine.repositories import DECOUPLED, DOUBLE, FP32, add_model, source

ANSWER = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', {} )]) for r in requests]"
WRONG = ANSWER.format("_in(r) * (2 + (_in(r) == 137).astype('float32'))")
NOISY = ANSWER.format("_in(r) + np.random.random(_in(r).shape).astype('float32')")
SLOW = f"import time; time.sleep(0.005)\n{DOUBLE}"
STREAM = """
for r in requests:
    for number in range(3):
        sender = r.get_response_sender() if number == 0 else sender
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', _in(r) + number)]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ALL: str = f"{FP32}version_policy {{ all {{}} }}\n"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    repository = tmp_path_factory.mktemp("models")
    add_model(
        repository, "double", config=ALL, versions={1: source(DOUBLE), 2: source(WRONG), 3: source(SLOW)}
    )
    add_model(repository, "noisy", NOISY)
    add_model(repository, "stream", STREAM, config=FP32 + DECOUPLED)
    yield from serve(repository, load_model=["double", "noisy", "stream"])


@pytest.fixture(autouse=True)
def no_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LOOK_S", 0.001)


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, addresses: Addresses) -> str:
    return str(getattr(addresses, request.param))


def tensor(name: str, *values: float) -> TapeTensor:
    data = np.array(values, "<f4").tobytes()
    return TapeTensor(name, "FP32", (len(values),), data, len(data))


def doubled(number: int, factor: float = 2.0, **changed: Any) -> Row:
    """A row that a model has answered 2 ms after the one before, in 1 ms."""
    answer = TapeResponse(1_000_000, (tensor("OUT", factor * number),), final=True)
    fields = {"model": "double", "version": "1", "asked_version": "1", "id": f"r{number}", **changed}
    return row(
        number, 100 + number / 500, inputs=(tensor("IN", number),), **{"responses": (answer,), **fields}
    )


def tape(path: Path, rows: Iterable[Row]) -> str:
    return str(write(path / "node" / "ab-1.open", rows).parents[1])


def replayed(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    """Run the command; return what it prints as JSON."""
    found = main([*words, "--json", "-"])
    printed = capsys.readouterr()
    assert found == status, printed
    return json.loads(printed.out)


def test_same_build_answers_the_same(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tape(tmp_path, [doubled(number) for number in range(200)])
    found = replayed(capsys, path, "-u", url, "--speed", "max")
    assert found["verdict"] == "equal" and found["differences"]["compared"] == found["rows"] == 200
    assert found["noise"]["rows"] == 200 and found["noise"]["largest"] == {"double": {"OUT": 0.0}}
    assert found["cache_hits"] == 0 and "no verdict" in found["latency"]["why"]


def test_version_that_is_wrong_on_one_input_is_found_out(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tape(tmp_path, [doubled(number) for number in range(500)])
    words = (path, "-u", url, "--speed", "max", "--version", "2")
    found = replayed(capsys, *words, status=1)
    assert [each["id"] for each in found["differences"]["rows"]] == ["r137"]
    assert found["why"] == ["double: 1 of 500 answers differ"]
    page = tmp_path / "page.html"
    assert main([*words, "--html", str(page), "--noise", "0"]) == 1
    printed = capsys.readouterr().out
    assert "r137 (ab-137)" in printed and "differs: double: 1 of 500 answers differ" in printed
    assert "noise: not measured" in printed and "r137 (ab-137)" in page.read_text()


def test_another_server_is_the_measure(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [doubled(number, factor=99.0, asked_version="2" if number % 2 else "") for number in range(100)]
    path = tape(tmp_path, [replace(each, version="1") for each in rows])
    words = (path, "-u", addresses.grpc, "--compare", addresses.http, "--speed", "max")
    found = replayed(capsys, *words, "--version", "1")
    assert found["differences"]["compared"] == 100 and found["compared_with"] == addresses.http
    assert not found["latency"]["way_ms"], "both are measured by the same client"


def test_slower_version_is_told_without_a_difference(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tape(tmp_path, [doubled(number) for number in range(100)])
    words = (path, "-u", addresses.grpc, "--compare", addresses.grpc, "--speed", "max", "--in-flight", "1")
    found = replayed(capsys, *words, "--version", "3", status=3)
    assert found["differences"]["differing"] == 0 and found["verdict"] == "slower"
    p50 = found["latency"]["figures"][0]
    assert p50["verdict"] == "worse" and p50["now"] > 5.0 and found["why"][0].startswith("p50 is ")


def test_rows_begin_at_their_moments(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tape(tmp_path, [doubled(number) for number in range(100)])
    assert main([path, "-u", addresses.grpc, "--speed", "0.5", "--json", str(tmp_path / "a.json")]) in (0, 4)
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["differences"]["differing"] == 0 and 0.396 < found["seconds"] < 5
    assert found["recorded_seconds"] == pytest.approx(0.198)
    assert bool(found["void"]) == (found["exit_status"] == 4), "a late generator is no replay"


@pytest.mark.parametrize("flag", ["--timeout", "--max-seconds", "--threshold"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "x"])
def test_numbers_that_are_none_are_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([tape(tmp_path, [doubled(1)]), "-u", "localhost:1", flag, value])
    assert ended.value.code == 2 and f"argument {flag}: '{value}' is no number of" in capsys.readouterr().err


def test_streams_need_grpc(addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def answers(number: int) -> tuple[TapeResponse, ...]:
        return tuple(TapeResponse(1, (tensor("OUT", number + each),)) for each in range(3))

    rows = [
        doubled(number, model="stream", asked_version="", responses=answers(number)) for number in range(20)
    ]
    path = tape(tmp_path, [*rows, doubled(21)])
    found = replayed(capsys, path, "-u", addresses.grpc, "--speed", "max")
    assert found["differences"]["models"]["stream"]["outputs"]["OUT"]["compared"] == 60
    found = replayed(capsys, path, "-u", addresses.http, "--speed", "max")
    assert found["rows"] == 1
    assert found["not_repeated"] == {"of model 'stream', which is decoupled: give -i grpc": 20}


def test_rule_tighter_than_the_noise_makes_it_void(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [doubled(number, 1.0, model="noisy", asked_version="") for number in range(1, 50)]
    path, rules = tape(tmp_path, rows), tmp_path / "rules.yaml"
    words = (path, "-u", addresses.grpc, "--speed", "max", "--rules", str(rules))
    rules.write_text("outputs: {OUT: {atol: 0.0001}}")
    found = replayed(capsys, *words, status=4)
    assert "the rule of 'OUT' is tighter than the noise" in found["why"][0]
    rules.write_text("outputs: {OUT: {atol: 1.0}}")
    assert replayed(capsys, *words)["verdict"] == "equal"


def test_few_rows_are_inconclusive_where_a_share_is_asked_for(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, rules = tape(tmp_path, [doubled(number) for number in range(100, 300)]), tmp_path / "rules.yaml"
    words = (path, "-u", addresses.grpc, "--speed", "max", "--rules", str(rules))
    rules.write_text("min_agreement: 0.999")
    assert "inconclusive" in replayed(capsys, *words, status=4)["why"][0]
    rules.write_text("min_agreement: 0.9")
    assert replayed(capsys, *words, "--version", "2")["differences"]["differing"] == 1


def test_nothing_compared_is_no_agreement(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, rules = tape(tmp_path, [doubled(number) for number in range(9)]), tmp_path / "rules.yaml"
    rules.write_text('outputs: {"*": ignore}')
    words = (path, "-u", addresses.grpc, "--speed", "max", "--rules", str(rules))
    assert "no answer has anything compared" in replayed(capsys, *words, status=4)["why"][0]
    rules.write_text('outputs: {"*": argmax}')  # of one element
    assert "no answer has anything compared" in replayed(capsys, *words, status=4)["why"][0]


def test_models_that_are_not_there(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tape(tmp_path, [doubled(number, model="old") for number in range(5)])
    words = (path, "-u", addresses.http, "--speed", "max")
    assert main(list(words)) == 4
    assert "5 of model 'old': " in capsys.readouterr().err
    assert replayed(capsys, *words, "--map-model", "old=double")["models"] == ["old"]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("none",), 2, "there is no tape at 'none'"),
        (("TAPE", "--where", "latency>50"), 2, "there is no 'latency'"),
        (("TAPE", "--map-model", "a"), 2, "'a' is no pair"),
        (("TAPE", "-u", "a b"), 2, "is no address"),
        (("TAPE", "--html", "/none/page.html"), 2, "cannot write /none/page.html"),
        (("TAPE", "--rules", "/none"), 2, "--rules: /none"),
        (("TAPE", "-u", "localhost:1"), 4, "localhost:1: "),
        (("TAPE", "--where", "model=b"), 4, "none was chosen"),
        (("EMPTY",), 4, "has no tape"),
    ],
)
def test_what_cannot_be_done_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], status: int, text: str
) -> None:
    path = tape(tmp_path, [doubled(1)])
    (tmp_path / "empty").mkdir()
    given = {"TAPE": path, "EMPTY": str(tmp_path / "empty")}
    assert main([given.get(word, word) for word in words]) == status
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("--speed", "0"), ("--speed", "fast"), ("--rows", "x"), ("--in-flight", "0")]
)
def test_wrong_words(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["tape", *words])
    assert raised.value.code == 2


def test_rows_over_a_year_are_not_waited_for(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    later = replace(doubled(2), arrived_ns=(1 << 63) - 1)
    assert main([tape(tmp_path, [doubled(1), later]), "-u", addresses.http]) == 4
    assert "more than 86,400 s (--max-seconds)" in capsys.readouterr().err


def test_hostile_tapes_harm_nobody(
    addresses: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Damaged files, tensors that are none, texts of a terminal and of a page."""
    evil = "<script>alert(1)</script>[red]\x1b[2J\r\nX: y"
    bad = [
        doubled(1, id=evil),
        doubled(2, model=evil),
        doubled(3, requested=(evil,)),
        doubled(4, version=evil, asked_version=evil),
        replace(doubled(5), inputs=(TapeTensor("IN", "FP32", (-1, 1 << 40), b"abc", 3),)),
        replace(doubled(6), inputs=(TapeTensor(evil, "NONE", (1,), b"abcd", 4),)),
        doubled(7, responses=(TapeResponse(-5, (TapeTensor("OUT", "FP32", (9,), b"x", 1),)),)),
        doubled(8, sequence_id=evil, sequence_start=True),
        doubled(9, responses=(TapeResponse(1, (TapeTensor("OUT", "FP32", (1,), b"abcd", 4),)),) * 3),
        doubled(10, parameters={evil: evil, "sequence_id": -1, "timeout": 1 << 62}),
        *(doubled(number) for number in range(11, 15)),
    ]
    path = Path(tape(tmp_path, bad))
    (path / "node" / "x.tape").write_bytes(MAGIC + random.Random(3).randbytes(5000))
    (path / "node" / "y.open").write_bytes(b"")
    os.mkfifo(path / "node" / "z.open")
    page, kept = tmp_path / "page.html", tmp_path / "kept.json"
    words = [str(path), "-u", addresses.grpc, "--speed", "max", "--html", str(page), "--json", str(kept)]
    assert main(words) == 1
    printed, found = capsys.readouterr().out, json.loads(kept.read_text())
    assert found["rows"] + sum(found["not_repeated"].values()) == len(bad)
    equal = found["differences"]["compared"] + sum(found["differences"]["not_compared"].values())
    assert equal >= 5 and {"r11", "r12", "r13", "r14"}.isdisjoint(
        r["id"] for r in found["differences"]["rows"]
    )
    assert "\x1b[2J" not in printed, "a terminal is not told what a tape says"
    text = page.read_text()
    assert "<script" not in text and "&lt;script&gt;" in text
