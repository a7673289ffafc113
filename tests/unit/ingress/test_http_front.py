import asyncio
import gc
import gzip
import json
import zlib
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
import tritonclient.http as client
import uvloop

from app.core.errors import unavailable
from app.core.tensors import InferResponse
from app.ingress.http_front import HttpFront
from app.ingress.http_server import HttpSettings
from app.ingress.metrics_front import MetricsFront
from tests.unit.ingress.http_fakes import FakeService

INFER = "/v2/models/identity/infer"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_scenario(scenario):
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(scenario, 20))

    return run_scenario


class Peer:
    """A raw client connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def response(self):
        """Return status, headers (names in lower case) and body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head[0].split()[1]), headers, body

    async def ask(self, data):
        await self.send(data)
        return await self.response()

    async def at_end(self):
        with suppress(ConnectionResetError):
            return await self.reader.read() == b""
        return True

    def close(self):
        self.writer.close()


@asynccontextmanager
async def fronted(service=None, **limits):
    service = service or FakeService()
    front = HttpFront(service, limits=HttpSettings(**({"linger_s": 0.2} | limits)))
    port = await front.start("127.0.0.1", 0)
    peers = []

    async def connect():
        peers.append(Peer(*await asyncio.open_connection("127.0.0.1", port)))
        return peers[-1]

    front.connect, front.bound, front.fake = connect, port, service
    try:
        yield front
    finally:
        for peer in peers:
            peer.close()
        await front.stop(1.0)
        assert (front.connections, front.buffered_bytes) == (0, 0)


def request(path, body=b"", *headers, method="POST"):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def infer_document(data, **fields):
    shape = [1, len(data)]
    return {"inputs": [{"name": "INPUT0", "shape": shape, "datatype": "FP32", "data": data}], **fields}


def json_infer(data=(1, 2), **fields):
    return request(INFER, json.dumps(infer_document(list(data), **fields)).encode())


def binary_infer(array, *headers, path=INFER):
    described = {
        "shape": list(array.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }
    document = {"inputs": [{"name": "INPUT0", **described}], "parameters": {"binary_data_output": True}}
    header = json.dumps(document).encode()
    length = f"Inference-Header-Content-Length: {len(header)}"
    return request(path, header + array.tobytes(), length, *headers)


def test_golden_exchange(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            await peer.send(json_infer(id="a"))
            body = (
                b'{"id":"a","model_name":"identity","model_version":"1","outputs":'
                b'[{"name":"OUTPUT0","datatype":"FP32","shape":[1,2],"data":[1.0,2.0]}]}'
            )
            wanted = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            assert await peer.reader.readexactly(len(wanted + body)) == wanted + body

    run(scenario())


@pytest.mark.parametrize("elements", [0, 1, 1000, 60_000, 2_000_000])
def test_binary_tensors_of_any_size_come_back(run, elements):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            array = np.arange(elements, dtype=np.float32).reshape(1, -1)
            for _ in range(2):
                status, headers, body = await peer.ask(binary_infer(array))
                length = int(headers.get("inference-header-content-length", len(body)))
                assert status == 200
                assert body[length:] == array.tobytes()

    run(scenario())


def test_a_request_may_come_in_any_pieces(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            data = binary_infer(np.ones((1, 4), np.float32))
            for size in (1, 7, len(data) - 1):
                for start in range(0, len(data), size):
                    await peer.send(data[start : start + size])
                    await asyncio.sleep(0)
                assert (await peer.response())[0] == 200

    run(scenario())


def test_pipelined_requests_are_answered_in_order(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            requests = [json_infer(id=str(n)) if n % 3 else request("/v2/nothing") for n in range(300)]
            await peer.send(b"".join(requests))
            for number in range(300):
                status, _, body = await peer.response()
                found = json.loads(body)
                assert found == {"error": "Not Found"} if number % 3 == 0 else found["id"] == str(number)
                assert status == (200 if number % 3 else 404)

    run(scenario())


def test_pipelined_long_bodies(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            array = np.random.default_rng(1).random((1, 100_000), np.float32)
            sending = asyncio.create_task(peer.send(binary_infer(array) * 3))
            for _ in range(3):
                assert (await peer.response())[2].endswith(array.tobytes())
            await sending

    run(scenario())


def chunked(path, body, size, *headers):
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", *headers, "", ""]
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return "\r\n".join(lines).encode() + chunks + b"0\r\n\r\n"


def test_chunked_request_bodies(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            body = json.dumps(infer_document([1.0] * 100)).encode()
            for size in (1, 100, 10_000):
                status, _, answer = await peer.ask(chunked(INFER, body, size))
                assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [1.0] * 100)
            raw = chunked(INFER, np.ones(8, np.float32).tobytes(), 5, "Inference-Header-Content-Length: 0")
            assert (await peer.ask(raw))[2].endswith(np.ones(8, np.float32).tobytes())

    run(scenario())


def test_too_many_chunks(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            status, _, body = await peer.ask(chunked(INFER, b" " * 65537, 1))
            assert (status, json.loads(body)["error"]) == (
                400,
                "Chunked request body exceeds maximum of 65536 non-empty chunks. "
                "Send fewer or larger HTTP chunks.",
            )
            assert await peer.at_end()

    run(scenario())


def test_expect_continue(run):
    async def scenario():
        async with fronted(max_body_bytes=1000) as front:
            peer = await front.connect()
            data = json_infer().replace(b"Host: x", b"Host: x\r\nExpect: 100-continue")
            head, _, body = data.partition(b"\r\n\r\n")
            assert (await peer.ask(head + b"\r\n\r\n"))[0] == 100
            assert (await peer.ask(body))[0] == 200
            long = b"POST /v2 HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n"
            assert (await peer.ask(long))[0] == 413

    run(scenario())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, 431),
        (b"GET /" + b"a" * 100_000, 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 5000000000\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n", 413),
    ],
)
def test_unreadable_requests_are_answered_and_closed(run, data, status):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            assert (await peer.ask(data))[0] == status
            assert await peer.at_end()
            assert (await (await front.connect()).ask(json_infer()))[0] == 200

    run(scenario())


ROUTES = [
    ("GET", "/", 404, "Not Found"),
    ("GET", "/v2/", 404, "Not Found"),
    ("GET", "/v2/health/live/", 404, "Not Found"),
    ("POST", "/v2/health/live", 405, "Method Not Allowed"),
    ("GET", INFER, 405, "Method Not Allowed"),
    ("PUT", INFER, 405, "Method Not Allowed"),
    ("POST", INFER + "/", 404, "Not Found"),
    ("POST", "/v2/models/identity/versions/x/infer", 404, "Not Found"),
    ("POST", "/v2/models/identity/versions//infer", 404, "Not Found"),
    ("POST", "/v2/models/a%2Fb/infer", 404, "Request for unknown model: 'a%2Fb' is not found"),
    ("POST", "/v2/models/none/infer", 404, "Request for unknown model: 'none' is not found"),
    (
        "POST",
        "/v2/models/identity/versions/9/infer",
        404,
        "Request for unknown model: 'identity' version 9 is not found",
    ),
    ("GET", "/v2/models/none", 404, "Request for unknown model: 'none' is not found"),
    ("GET", "/v2/models/identity/versions/x", 404, "Not Found"),
    ("GET", "/docs", 404, "Not Found"),
    ("GET", "/openapi.json", 404, "Not Found"),
    ("DELETE", "/v2", 405, "Method Not Allowed"),
]


def test_unknown_paths_and_methods(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            for method, path, status, message in ROUTES:
                found, headers, body = await peer.ask(request(path, method=method))
                assert (path, found, json.loads(body)) == (path, status, {"error": message})
                assert headers["content-type"] == "application/json"
            await peer.send(request("/v2", method="HEAD"))
            assert (await peer.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 405")
            assert (await peer.ask(request("/v2?x=1", method="GET")))[0] == 200

    run(scenario())


def test_infer_errors(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            infer = json_infer()

            async def error(data):
                status, _, body = await peer.ask(data)
                return status, json.loads(body)["error"]

            assert await error(request(INFER, b"{")) == (
                500,
                "failed to parse the request JSON buffer: Missing a name for object member. at 1",
            )
            over = request(INFER, b"{}", "Inference-Header-Content-Length: 3")
            assert await error(over) == (400, "inference header size should be in range (0, 2), got: 3")
            assert await error(request(INFER, b"{}", "Inference-Header-Content-Length: x")) == (
                400,
                "Unable to parse Inference-Header-Content-Length, got: x",
            )
            front.fake.failure = unavailable("no")
            assert await error(infer) == (503, "no")
            front.fake.failure = None
            front.fake.config.model_transaction_policy.decoupled = True
            assert await error(infer) == (
                501,
                "HTTP end point doesn't support models with decoupled transaction policy",
            )
            front.fake.config.model_transaction_policy.decoupled = False
            front.fake.submit = None
            assert (await error(infer))[0] == 500

    run(scenario())


def test_more_than_one_response_is_an_error(run):
    async def scenario():
        service = FakeService()
        service.hold = True
        async with fronted(service) as front:
            for number, wanted in ((1, 200), (2, 500)):
                peer = await front.connect()
                await peer.send(json_infer())
                await service.asked()
                asked, sink = service.held.pop()
                answer = service.answer(asked)
                for _ in range(number):
                    sink(InferResponse(answer.model_name, "1", answer.outputs, final=False))
                sink(InferResponse(final=True))
                status, _, body = await peer.response()
                assert status == wanted
            assert json.loads(body) == {"error": "expected a single response, got 2"}

    run(scenario())


def test_disconnect_cancels(run):
    async def scenario():
        service = FakeService()
        service.hold = True
        async with fronted(service) as front:
            peer = await front.connect()
            await peer.send(json_infer())
            while not service.calls:
                await asyncio.sleep(0.001)
            peer.close()
            async with asyncio.timeout(1):
                while not service.calls[0].cancelled:
                    await asyncio.sleep(0.001)
            request_, sink = service.held[0]
            sink(service.answer(request_))

    run(scenario())


@pytest.mark.parametrize(
    ("encoding", "pack", "unpack"),
    [
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
    ],
)
def test_compression(run, encoding, pack, unpack):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            plain = binary_infer(np.ones((1, 500), np.float32))
            head, _, body = plain.partition(b"\r\n\r\n")
            header_length = [line for line in head.decode().split("\r\n") if "Inference" in line]
            coding = [f"Content-Encoding: {encoding}", f"Accept-Encoding: {encoding};q=0.5"]
            status, headers, answer = await peer.ask(request(INFER, pack(body), *header_length, *coding))
            assert (status, headers["content-encoding"]) == (200, encoding)
            length = int(headers["inference-header-content-length"])
            assert unpack(answer)[length:] == np.ones(500, np.float32).tobytes()

    run(scenario())


def test_compressed_requests_refused(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            status, headers, body = await peer.ask(request(INFER, b"x", "Content-Encoding: br"))
            assert (status, json.loads(body)) == (501, {"error": "Unsupported compression type"})
            assert headers["accept-encoding"] == "gzip, deflate"
            front.max_input_size = 1000
            bomb = gzip.compress(bytes(10 << 20))
            status, _, body = await peer.ask(request(INFER, bomb, "Content-Encoding: gzip"))
            assert status == 400
            assert json.loads(body)["error"].startswith("Decompressed data size exceeds the maximum allowed")
            assert (await peer.ask(request(INFER, b"junk", "Content-Encoding: gzip")))[0] == 400

    run(scenario())


def test_slow_requests_time_out(run):
    async def scenario():
        async with fronted(read_timeout_s=0.05) as front:
            front._server._watch.cancel()
            for begun in (b"GET /v2 HT", b"POST /v2 HTTP/1.1\r\nContent-Length: 300000\r\n\r\nabc"):
                peer = await front.connect()
                await peer.send(begun)
                await asyncio.sleep(0.1)
                front._server._check_connections()
                assert (await peer.response())[0] == 408
                assert await peer.at_end()
                front._server._watch.cancel()

    run(scenario())


def test_idle_connections_are_closed(run):
    async def scenario():
        async with fronted(idle_timeout_s=0.05) as front:
            peer = await front.connect()
            assert (await peer.ask(json_infer()))[0] == 200
            front._server._check_connections()
            await asyncio.sleep(0.1)
            front._server._check_connections()
            assert await peer.at_end()

    run(scenario())


def test_a_client_that_takes_nothing_is_cut_off(run):
    async def scenario():
        service = FakeService()
        service.large_output = bytes(30 << 20)
        async with fronted(service, write_timeout_s=0.05) as front:
            peer = await front.connect()
            await peer.send(binary_infer(np.ones((1, 1), np.float32)) * 2)
            async with asyncio.timeout(5):
                while front.connections:
                    await asyncio.sleep(0.05)
                    front._server._watch.cancel()
                    front._server._check_connections()
            assert service.requests == 1  # The second was not begun: its response would have had to wait too.

    run(scenario())


def test_buffered_bytes_and_connections_are_bounded(run):
    async def scenario():
        async with fronted(max_buffered_bytes=300_000, max_connections=2) as front:
            peers = [await front.connect() for _ in range(2)]
            for peer in peers:
                await peer.send(b"POST /v2 HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(200_000))
            done, _ = await asyncio.wait(
                [asyncio.create_task(peer.response()) for peer in peers], return_when="FIRST_COMPLETED"
            )
            assert [task.result()[0] for task in done] == [503]
            assert await (await front.connect()).at_end()

    run(scenario())


def test_stop_finishes_what_was_begun(run):
    async def scenario():
        service = FakeService()
        service.hold = True
        async with fronted(service) as front:
            busy, idle = await front.connect(), await front.connect()
            assert (await idle.ask(request("/v2/health/live", method="GET")))[0] == 200
            await busy.send(json_infer())
            await service.asked()
            stopping = asyncio.create_task(front.stop(5))
            assert await idle.at_end()
            with pytest.raises(OSError):
                await front.connect()
            asked, sink = service.held[0]
            sink(service.answer(asked))
            status, headers, _ = await busy.response()
            assert (status, headers["connection"]) == (200, "close")
            assert await busy.at_end()
            await stopping

    run(scenario())


def test_stop_cuts_after_the_grace_period(run):
    async def scenario():
        service = FakeService()
        service.hold = True
        async with fronted(service) as front:
            peer = await front.connect()
            await peer.send(json_infer())
            await service.asked()
            await front.stop(0.05)
            assert service.calls[0].cancelled

    run(scenario())


def test_triton_client(run):
    def use(port):
        with client.InferenceServerClient(f"127.0.0.1:{port}") as triton:
            assert triton.is_server_live() and triton.is_model_ready("identity")
            for elements in (16, 300_000):
                array = np.random.default_rng(0).random((2, elements), np.float32)
                for binary in (True, False):
                    if elements > 16 and not binary:
                        continue
                    tensor = client.InferInput("INPUT0", array.shape, "FP32")
                    tensor.set_data_from_numpy(array, binary_data=binary)
                    for outputs in (None, [client.InferRequestedOutput("OUTPUT0", binary_data=binary)]):
                        result = triton.infer("identity", [tensor], outputs=outputs, request_id="7")
                        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)
                        assert result.get_response()["id"] == "7"
            tensor = client.InferInput("INPUT0", [1, 3], "FP32")
            tensor.set_data_from_numpy(np.array([[1, 3, 2]], np.float32))
            top = triton.infer(
                "identity", [tensor], outputs=[client.InferRequestedOutput("OUTPUT0", class_count=2)]
            )
            assert top.as_numpy("OUTPUT0").tolist() == [[b"3.000000:1:one", b"2.000000:2:two"]]
            with pytest.raises(client.InferenceServerException, match="is not found"):
                triton.infer("none", [tensor])

    async def scenario():
        async with fronted() as front:
            await asyncio.to_thread(use, front.bound)

    run(scenario())


def test_metrics_port(run):
    async def scenario():
        async def collect():
            return b"nv_inference_count 1\n"

        front = MetricsFront(collect)
        port = await front.start("127.0.0.1", 0)
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
        for path in ("/metrics", "/metrics/"):
            status, headers, body = await peer.ask(request(path, method="GET"))
            assert (status, body) == (200, b"nv_inference_count 1\n")
            assert headers["content-type"] == "text/plain; charset=utf-8"
        assert (await peer.ask(request("/other", method="GET")))[::2] == (200, b"")
        assert (await peer.ask(request("/metrics")))[0] == 405
        peer.close()
        await front.stop(1)

    run(scenario())


def test_http_1_0(run):
    async def scenario():
        async with fronted() as front:
            peer = await front.connect()
            kept = b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
            status, headers, _ = await peer.ask(kept)
            assert (status, headers["connection"]) == (200, "Keep-Alive")
            assert (await peer.ask(b"GET /v2 HTTP/1.0\r\n\r\n"))[1]["connection"] == "close"
            assert await peer.at_end()

    run(scenario())


def test_requests_leave_nothing_to_the_garbage_collector(run):
    """Cyclic garbage on the hot path showed as pauses of 20 ms at the 99th percentile."""

    async def scenario():
        async with fronted() as front:
            reader, writer = await asyncio.open_connection("127.0.0.1", front.bound)
            data = binary_infer(np.ones((1, 4), np.float32))
            peer = Peer(reader, writer)
            await peer.ask(data)
            found = []
            gc.disable()
            try:
                for _ in range(4):  # what else lives in this process may leave something once
                    front.fake.calls.clear()
                    gc.collect()
                    for _ in range(200):
                        assert (await peer.ask(data))[0] == 200
                    found.append(gc.collect())
            finally:
                gc.enable()
                writer.close()
            assert min(found) < 100

    run(scenario())
