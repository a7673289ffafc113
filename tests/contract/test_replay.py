"""`nereid replay` and a server: answers that were recorded are given again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from nereid_client import Result, Server, connect
from nereid_client.datatypes import encode, to_array
from nereid_client.tape.records import MAGIC
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from nereid_client.tape.segments import OPEN, encode_row
from nereid_client.tools.replay.command import main
from tests.contract.conftest import Addresses


def tensor(name: str, values: Any, datatype: str) -> TapeTensor:
    array = to_array(name, values, datatype)
    data = bytes(encode(array, datatype))
    return TapeTensor(name, datatype, array.shape, data, len(data))


class Recorder:
    """Asks a server, and has the rows that it would record, 2 ms apart."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.rows: list[Row] = []

    def add(self, model: str, inputs: dict[str, Any], *answers: Result, **fields: Any) -> None:
        signature = self._server.model(model).signature()
        responses = tuple(
            TapeResponse(
                1000, tuple(tensor(name, each[name], signature.outputs[name].datatype) for name in each)
            )
            for each in answers
        )
        taken = tuple(tensor(name, value, signature.inputs[name].datatype) for name, value in inputs.items())
        number = len(self.rows) + 1
        arrived = 1_700_000_000_000_000_000 + number * 2_000_000
        self.rows.append(
            Row(arrived, arrived, "contract", number, model, version=answers[0].version, id=f"r{number}",
                inputs=taken, responses=responses, **fields)
        )  # fmt: skip


@pytest.fixture(scope="module")
def rows(server: Addresses) -> Iterator[list[Row]]:
    """Rows of a plain model, one of sequences, one of streams, and one of texts."""
    with connect(f"grpc://{server.grpc}") as connected:
        recorder = Recorder(connected)
        simple, words = connected.model("simple"), connected.model("simple_string")
        for number in range(40):
            inputs = {"INPUT0": np.full((1, 16), number, np.int32), "INPUT1": np.ones((1, 16), np.int32)}
            recorder.add("simple", inputs, simple(inputs))
        texts = {
            "INPUT0": np.array([[b"%d" % n for n in range(16)]], object),
            "INPUT1": np.full((1, 16), b"1", object),
        }
        recorder.add("simple_string", texts, words(texts))
        with connected.model("simple_sequence").sequence() as sequence:
            for step in range(4):
                value = {"INPUT": np.array([[step]], np.int32)}
                answer = sequence(value, last=step == 3)
                recorder.add(
                    "simple_sequence",
                    value,
                    answer,
                    sequence_id=7,
                    sequence_start=step == 0,
                    sequence_end=step == 3,
                )
        stream = {
            "IN": np.arange(3, dtype=np.int32),
            "DELAY": np.zeros(3, np.uint32),
            "WAIT": np.zeros(1, np.uint32),
        }
        recorder.add("repeat_int32", stream, *connected.model("repeat_int32").stream(stream))
        yield recorder.rows


def replayed(
    capsys: pytest.CaptureFixture[str], path: Path, rows: list[Row], *words: str, status: int
) -> Any:
    (path / "node").mkdir(exist_ok=True)
    with open(path / "node" / f"contract-000001{OPEN}", "wb") as file:  # it has no summary
        file.write(MAGIC)
        for each in rows:
            file.writelines(encode_row(each))
    assert main([str(path), *words, "--speed", "max", "--json", "-"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_recorded_answers_are_given_again(
    rows: list[Row], server: Addresses, protocol: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"{protocol}://{getattr(server, protocol)}"
    found = replayed(capsys, tmp_path, rows, "-u", url, status=0)
    streams = int(protocol == "http")
    assert found["rows"] == found["differences"]["compared"] == len(rows) - streams
    assert sum(found["not_repeated"].values()) == streams and found["differences"]["differing"] == 0
    other = replace(rows[7], responses=rows[8].responses)
    found = replayed(capsys, tmp_path, [*rows[:7], other, *rows[8:]], "-u", url, status=1)
    assert [each["id"] for each in found["differences"]["rows"]] == ["r8"]
    assert set(found["differences"]["models"]["simple"]["outputs"]) == {"OUTPUT0", "OUTPUT1"}
