"""Requests to models in rollouts at an even rate, whatever became of others; every answer is checked."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Self

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

PATIENCE_S: Final = 60.0
"""How long a request without a deadline is waited for."""
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_VALUES: Final = np.random.default_rng(1).random((64, 1, 4), np.float32)
_MOST: Final = 1000
"""Requests of a stream in flight; further ones are not sent, and counted as failed."""


class Event(NamedTuple):
    """A request: when it ended and how long it took, in seconds, by which version, and how it went."""

    at: float
    took: float
    version: int
    result: str

    @property
    def begun(self) -> float:
        """When it was sent."""
        return self.at - self.took


class Stream:
    """The requests to one model.

    Attributes:
        rate: a second.
        deadline_s: how long a client waits for an answer; 0 for long.
        events: what became of each.
    """

    def __init__(self, model: str, way: str, rate: float) -> None:
        self.model = model
        self.rate = rate
        self.deadline_s = 0.0
        self.events: list[Event] = []
        self._over_http = way in ("http", "bls")
        self._flying: dict[int, float] = {}
        self._sent = 0
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._call: Any = None

    def between(self, begun: float, ended: float) -> list[Event]:
        """Return the requests that were sent in a time."""
        return [event for event in list(self.events) if begun <= event.begun < ended]

    def unanswered(self, before: float) -> int:
        """Return how many that were sent before a time have no answer yet."""
        return sum(begun < before for begun in list(self._flying.values()))

    async def run(self, http: str, grpc_url: str) -> None:
        """Send for ever."""
        tasks: set[asyncio.Task[None]] = set()
        async with grpc.aio.insecure_channel(grpc_url) as channel:
            self._call = channel.unary_unary(_INFER, None, service_pb2.ModelInferResponse.FromString)
            due = time.monotonic()
            while True:
                if self.rate and len(tasks) < _MOST:
                    task = asyncio.create_task(self._ask(http))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                elif self.rate:
                    self.events.append(Event(time.monotonic(), 0, 0, f"{_MOST} are in flight"))
                # One that is late does not make the next ones come at once.
                due = max(due + 1 / (self.rate or 10), time.monotonic() - 0.1)
                await asyncio.sleep(due - time.monotonic())

    async def _ask(self, http: str) -> None:
        number = self._sent = self._sent + 1
        values = _VALUES[number % len(_VALUES)]
        begun = self._flying[number] = time.monotonic()
        version, result = 0, "ok"
        send = partial(self._ask_http, http) if self._over_http else self._ask_grpc
        try:
            async with asyncio.timeout(self.deadline_s or PATIENCE_S):
                outputs = await send(values)
            version, result = _checked(outputs, values)
        except TimeoutError:
            result = f"no answer within {self.deadline_s or PATIENCE_S:g} s"
        except grpc.aio.AioRpcError as error:
            result = f"{error.code().name}: {error.details()}"
        except Exception as error:
            result = repr(error)
        finally:
            del self._flying[number]
        ended = time.monotonic()
        self.events.append(Event(ended, ended - begun, version, result))

    async def _ask_grpc(self, values: np.ndarray) -> dict[str, np.ndarray]:
        request = service_pb2.ModelInferRequest(model_name=self.model, raw_input_contents=[values.tobytes()])
        request.inputs.add(name="IN", datatype="FP32", shape=values.shape)
        answer = await self._call(request.SerializeToString(), timeout=self.deadline_s or None)
        names = [output.name for output in answer.outputs]
        parts = [np.frombuffer(part, np.uint8) for part in answer.raw_output_contents]
        return dict(zip(names, parts, strict=True))

    async def _ask_http(self, address: str, values: np.ndarray) -> dict[str, np.ndarray]:
        reader, writer = await self._connected(address)
        kept = False
        try:
            writer.write(_http_request(self.model, values))
            head, body = await _http_answer(reader)
            kept = True
        finally:
            if kept:
                self._idle.append((reader, writer))
            else:
                writer.close()
        return _http_outputs(head, body)

    async def _connected(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return an idle connection that the server has not closed, as it does after a time, or a new one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        host, _, port = address.partition(":")
        return await asyncio.open_connection(host, port)


def _checked(outputs: dict[str, np.ndarray], values: np.ndarray) -> tuple[int, str]:
    """Return which version has answered, and how."""
    if outputs.keys() != {"OUT", "BY"}:
        return 0, f"wrong: outputs {sorted(outputs)}"
    version = int(outputs["BY"].view(np.int32)[0])
    if outputs["OUT"].tobytes() != values.tobytes():
        return version, "wrong: other values"
    return version, "ok"


def _http_request(model: str, values: np.ndarray) -> bytes:
    tensor = {"name": "IN", "shape": values.shape, "datatype": "FP32"}
    size = {"binary_data_size": values.nbytes}
    head = json.dumps(
        {"inputs": [{**tensor, "parameters": size}], "parameters": {"binary_data_output": True}}
    ).encode()
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: localhost",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + values.nbytes}",
    )
    return "\r\n".join((*lines, "", "")).encode() + head + values.tobytes()


async def _http_answer(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    head = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    head["status"] = status.split()[1]
    return head, await reader.readexactly(int(head["content-length"]))


def _http_outputs(head: dict[str, str], body: bytes) -> dict[str, np.ndarray]:
    if head["status"] != "200":
        raise OSError(f"{head['status']}: {body.decode(errors='replace')}")
    at = int(head.get("inference-header-content-length", len(body)))
    outputs = {}
    for output in json.loads(body[:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        outputs[output["name"]] = np.frombuffer(body[at : at + size], np.uint8)
        at += size
    return outputs


class Load:
    """Sends all streams from the begin of a `with` block to its end, in one thread."""

    def __init__(self, http: str, grpc_url: str, streams: Iterable[Stream]) -> None:
        self.streams = list(streams)
        self._addresses = http, grpc_url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(10)

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._send())

    async def _send(self) -> None:
        await asyncio.gather(*(stream.run(*self._addresses) for stream in self.streams))


def bad(events: Iterable[Event]) -> tuple[Counter[str], Counter[str]]:
    """Return the errors and the wrong answers among requests, by text."""
    results = Counter(event.result[:200] for event in events if event.result != "ok")
    wrong = Counter({text: count for text, count in results.items() if text.startswith("wrong")})
    return results - wrong, wrong


def quantile_ms(events: Iterable[Event], version: int = 0, quantile: float = 0.99) -> float:
    """Return a quantile of the answers, of one version or (0) of all."""
    took = [e.took * 1000 for e in events if e.result == "ok" and version in (0, e.version)]
    return float(np.quantile(took, quantile)) if took else float("nan")
