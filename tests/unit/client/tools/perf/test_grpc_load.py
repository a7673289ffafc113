"""The generator, against a real gRPC server in this process."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from nereid_client.tools.perf import figures
from nereid_client.tools.perf.generator.arrivals import draw
from nereid_client.tools.perf.generator.http2 import grpc_payload
from nereid_client.tools.perf.generator.job import End, Endpoint, Job, rows_of
from nereid_client.tools.perf.generator.load import Generator
from tests.unit.client.tools.perf.running import run
from tests.waiting import until


class Grpc:
    """A gRPC server whose `ModelInfer` echoes bytes, and whose `ModelStreamInfer` sends three of them."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.turns: list[str] = []

    async def start(self) -> Endpoint:
        self._server = grpc.aio.server()
        handlers = {
            "ModelInfer": grpc.unary_unary_rpc_method_handler(self._echo),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._thrice),
        }
        service = "inference.GRPCInferenceService"
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return Endpoint("grpc", "127.0.0.1", port, f"/{service}/ModelInfer", (("X-Key", "v" * 200),))

    async def _echo(self, request: bytes, context: Any) -> bytes:
        self.got.append(request)
        metadata = dict(context.invocation_metadata())
        assert metadata["x-key"] == "v" * 200
        self.turns.append(metadata.get("x-turn", ""))
        if request == b"bad":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "why: 100% bad")
        return request

    async def _thrice(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            for _ in range(3):
                yield b"\x0a\x03why" if request == b"bad" else request

    async def stop(self) -> None:
        await self._server.stop(0)


@pytest.fixture
async def grpc_endpoint() -> AsyncIterator[Endpoint]:
    server = Grpc()
    yield await server.start()
    await server.stop()


def grpc_job(endpoint: Endpoint, *messages: bytes, **fields: Any) -> Job:
    return Job(endpoint, tuple(map(grpc_payload, messages)), timeout_s=5.0, **fields)


@pytest.mark.parametrize("size", [10, 16_384, 3_000_000])  # one frame, more than one, more than any window
async def test_grpc_calls(grpc_endpoint: Endpoint, size: int) -> None:
    rows, errors = await run(grpc_job(grpc_endpoint, bytes(size), concurrency=2), 2)
    assert len(rows) >= 2 and not errors


async def test_calls_of_all_connections_take_varied_headers_in_turn() -> None:
    server = Grpc()
    varied = ((("X-Turn", "a"),), (("X-Turn", "b"), ("x-more", "1")), ())
    endpoint = replace(await server.start(), varied=varied)
    rows, errors = await run(grpc_job(endpoint, b"m", concurrency=2), 20)
    await server.stop()
    assert len(rows) >= 20 and not errors
    counts = [server.turns.count(turn) for turn in ("a", "b", "")]
    assert sum(counts) == len(server.turns) and max(counts) - min(counts) <= 2


async def test_repeated_grpc_calls_take_payloads_in_turn_and_every_answer_counts() -> None:
    server = Grpc()
    load = grpc_job(await server.start(), b"a", b"b", b"c", concurrency=1)
    rows, errors = await run(load, 20)
    await server.stop()
    assert server.got == [b"abc"[i % 3 :][:1] for i in range(len(server.got))]
    assert len(rows) == len(server.got) >= 20 and not errors
    assert (rows[1:, 0] >= rows[:-1, 3]).all()


async def test_grpc_calls_share_connections_in_an_open_loop(grpc_endpoint: Endpoint) -> None:
    load = grpc_job(grpc_endpoint, b"x", arrivals=draw("constant", 500, 0.1, 0), connections=1)
    rows, errors = await run(load)
    assert len(rows) == 50 and not errors


async def test_grpc_errors_have_their_texts(grpc_endpoint: Endpoint) -> None:
    rows, errors = await run(grpc_job(grpc_endpoint, b"x", b"bad", concurrency=1), 10)
    assert set(errors) == {"gRPC status 3: why: 100% bad"}
    assert (rows[:, 4] == End.REFUSED).sum() == pytest.approx(len(rows) / 2, abs=1)


async def test_grpc_streams(grpc_endpoint: Endpoint) -> None:
    path = grpc_endpoint.path.replace("ModelInfer", "ModelStreamInfer")
    endpoint = replace(grpc_endpoint, path=path, streaming=True)
    rows, errors = await run(grpc_job(endpoint, b"x", bytes(100_000), arrivals=np.arange(6) * 5_000_000))
    assert figures.responses(rows) == 18 and not errors
    rows, errors = await run(grpc_job(endpoint, b"bad", arrivals=np.array([0])))
    assert errors == {"gRPC status 0: why": 1}


async def test_responses_of_grpc_streams_are_checked(grpc_endpoint: Endpoint) -> None:
    path = grpc_endpoint.path.replace("ModelInfer", "ModelStreamInfer")
    message = pb.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="Y", datatype="INT32", shape=[1])
    message.infer_response.raw_output_contents.append(b"\1\0\0\0")
    one = {"Y": np.array([1], np.int32)}
    for number, text in ((3, ""), (2, "wrong answer: 3 responses, not 2")):
        expected = ((one,) * number,)
        endpoint = replace(grpc_endpoint, path=path, streaming=True)
        _, errors = await run(
            grpc_job(endpoint, message.SerializeToString(), concurrency=1, expected=expected), 3
        )
        assert set(errors) == ({text} if text else set())


async def test_grpc_connection_that_is_cut_fails_its_calls() -> None:
    server = Grpc()
    generator = Generator(grpc_job(await server.start(), b"x", concurrency=2))
    await generator.open()
    generator.begin(time.monotonic_ns())
    await until(lambda: generator._records)
    await server.stop()
    await until(lambda: generator._errors)
    await generator.stop()
    told = generator.told()
    assert told.errors and rows_of([told])[0, 4] == End.OK
