"""Scripts: requests that are each sent once, and what is kept of their answers."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid_client.tools.perf import figures
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.http2 import grpc_payload
from nereid_client.tools.perf.generator.job import End, Endpoint, Job, Script, Told, rows_of
from nereid_client.tools.perf.generator.script import Scripted
from nereid_client.tools.perf.generator.worker import shares
from tests.unit.client.tools.perf.running import told_of
from tests.unit.client.tools.perf.test_grpc_load import Grpc
from tests.unit.client.tools.perf.test_load import serve

__all__ = ["serve"]
MS = 1_000_000


def script(
    path: Path, payloads: list[bytes], sequences: list[int], streams: frozenset[int] = frozenset()
) -> Script:
    """A script whose rows have the numbers 0, 1, ... and these sequences."""
    (path / "requests").write_bytes(b"".join(payloads))
    ends = np.cumsum([len(each) for each in payloads]).tolist()
    rows = [
        (number, end - len(payload), len(payload), sequence, number in streams)
        for number, (payload, sequence, end) in enumerate(zip(payloads, sequences, ends, strict=True))
    ]
    return Script(str(path / "requests"), str(path / "answers"), np.array(rows, np.int64))


def over_http(endpoint: Endpoint, path: Path, sequences: list[int], **fields: Any) -> Job:
    bodies = [b'{"n":%d}' % number for number in range(len(sequences))]
    payloads = [http_request(endpoint, {}, body) for body in bodies]
    return Job(endpoint, (), timeout_s=5.0, script=script(path, payloads, sequences), **fields)


def kept(told: Told, path: Path) -> dict[int, bytes]:
    """What was answered to each row."""
    data = (path / "answers").read_bytes()
    places = np.frombuffer(told.kept, np.int64).reshape(-1, 3).tolist()
    return {number: data[offset : offset + size] for number, offset, size in places}


class Echo:
    """Answers with what was sent, later and later; knows which numbers were there at a time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.there: list[bytes] = []
        self.order: list[int] = []
        self.most = 0

    async def answer(self, body: bytes) -> bytes:
        self.there.append(body)
        self.order.append(int(body[5:-1]))
        self.most = max(self.most, len(self.there))
        await asyncio.sleep(self._seconds)
        self.there.remove(body)
        status = b"400 Bad Request" if body == b'{"n":3}' else b"200 OK"
        text = b'{"error":"three"}' if body == b'{"n":3}' else body
        return b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(text) + text


async def test_each_request_is_sent_once_at_its_moment_and_its_answer_kept(
    serve: Any, tmp_path: Path
) -> None:
    moments = np.array([0, 5, 5, 40, 41], np.int64) * MS
    job = over_http(await serve(Echo().answer), tmp_path, [-1] * 5, arrivals=moments)
    told = await told_of(job, 5)
    rows = rows_of([told])
    np.testing.assert_array_equal(np.sort(rows[:, 0]) - rows[:, 0].min(), moments)
    expected: dict[int, bytes] = {n: b'{"n":%d}' % n for n in range(5)}
    assert kept(told, tmp_path) == {**expected, 3: b"HTTP 400: three"}
    numbers = np.frombuffer(told.kept, np.int64).reshape(-1, 3)[:, 0].tolist()
    refused = [number for number, end in zip(numbers, rows[:, 4].tolist(), strict=True) if end == End.REFUSED]
    assert refused == [3], "records and answers have one order"


async def test_step_of_a_sequence_waits_for_the_one_before_and_holds_nobody_up(
    serve: Any, tmp_path: Path
) -> None:
    echo = Echo(0.05)
    job = over_http(await serve(echo.answer), tmp_path, [0, 0, -1, 0, -1], arrivals=np.zeros(5, np.int64))
    told = await told_of(job, 5)
    assert echo.order.index(0) < echo.order.index(1) < echo.order.index(3)
    assert set(echo.order[:3]) == {0, 2, 4} and echo.most == 3
    assert figures.latencies(rows_of([told])).max() >= 100 * MS, "waiting for its turn counts"


async def test_closed_loop_goes_on_with_steps_before_it_begins_others(serve: Any, tmp_path: Path) -> None:
    """Otherwise requests that begin sequences would take all places, while those that have slots wait."""
    echo = Echo(0.01)
    sequences = [0, 0, 0, 1, 1, 2, 2, -1, -1, 3]
    job = over_http(await serve(echo.answer), tmp_path, sequences, concurrency=2, connections=2)
    told = await told_of(job, len(sequences))
    assert len(kept(told, tmp_path)) == len(sequences) and echo.most == 2
    for sequence in range(3):
        own = [number for number in echo.order if sequences[number] == sequence]
        assert own == sorted(own)
    assert echo.order[:2] == [0, 3] and set(echo.order[2:4]) == {1, 4}


@pytest.mark.parametrize("closed", [False, True])
async def test_streams_among_calls_over_grpc(tmp_path: Path, closed: bool) -> None:
    server = Grpc()
    endpoint = await server.start()
    endpoint = replace(endpoint, stream_path=endpoint.path.replace("ModelInfer", "ModelStreamInfer"))
    messages = [b"one", b"many", b"bad", b"two", b"bad"]
    made = script(tmp_path, list(map(grpc_payload, messages)), [-1] * 5, frozenset({1, 4}))
    load: dict[str, Any] = {"concurrency": 2} if closed else {"arrivals": np.zeros(5, np.int64)}
    told = await told_of(Job(endpoint, (), timeout_s=5.0, script=made, **load), 5)
    await server.stop()
    found = kept(told, tmp_path)
    assert found[0] == grpc_payload(b"one") and found[3] == grpc_payload(b"two")
    assert found[1] == b"\0\0\0\4many" * 3
    assert b"100% bad" in found[2] and found[4].endswith(b": why"), "a response of an error ends its stream"


def test_request_that_waits_too_long_lets_the_next_of_its_sequence_come(tmp_path: Path) -> None:
    source = Scripted(script(tmp_path, [b"a", b"b", b"c"], [7, 7, -1]), closed=False)
    for moment in (10, 20, 30):
        source.add(moment, moment)
    assert source.ready() == 2, "the second step is held back"
    assert source.overdue(5) is None
    late = [call for _ in range(3) if (call := source.overdue(25)) is not None]
    assert [call.index for call in late] == [0], "the next one that may begin was to begin later"
    assert sorted(bytes(source.take().payload) for _ in range(2)) == [b"b", b"c"]


def test_generators_share_a_script_by_sequences(tmp_path: Path) -> None:
    sequences = [0, -1, 1, 0, 2, -1, 1, -1]
    made = script(tmp_path, [b"x"] * 8, sequences)
    job = Job(Endpoint("http", "h", 1, "/"), (), script=made, arrivals=np.arange(8, dtype=np.int64))
    parts = [part.script for part in shares(job, 3)]
    assert sum(len(part.script.rows) for part in shares(job, 3) if part.script is not None) == 8
    owners = Counter(
        (sequence, place)
        for place, part in enumerate(parts)
        if part is not None
        for sequence in set(part.rows[:, 3].tolist()) - {-1}
    )
    assert len(owners) == 3, "each sequence has one generator"
    assert len({part.answers for part in parts if part is not None}) == 3
