"""State shared by the inference routes of an HTTP front."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from time import monotonic_ns
from typing import Final, NamedTuple, TypeVar

from app.core.inference import Call, Sink
from app.core.system.cpus import available_cpus
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest
from app.ingress.access.guard import Ask
from app.ingress.http1.exchange import Exchange, Route
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.protocol.forwarding import HeaderForwarder
from app.protocol.http.compiled import DecodeInfer
from app.protocol.http.json_tensors import EncodeData
from app.routing.canary import heed_headers
from app.routing.table import VersionEntry
from app.settings.fronts import Http1Settings

T = TypeVar("T")
_NO_ATTRIBUTES: Final[Mapping[str, str | int]] = {}

LONG_JSON: Final = 32 << 10
"""Bytes of JSON from which it is read in a thread: 0.1 ms; `MAX_JSON` of `http_requests.h` is as much."""
LONG_DATA: Final = 8 << 10
"""Bytes of tensors from which they are written as JSON, or compressed, in a thread: 0.1 to 0.3 ms."""

_NICENESS: Final = 10
"""Of the threads for long work: a tenth of the loop's share of a processor that both want."""


@cache
def long_work() -> ThreadPoolExecutor:
    """Return the threads in which this process reads, writes and compresses what is long.

    Small requests, which the loop answers, come first: beside clients of long JSON they had half of the rate.
    """
    return ThreadPoolExecutor(min(32, available_cpus() + 4), "long-work", _give_way)


def _give_way() -> None:
    if sys.platform == "linux":  # elsewhere it is of the whole process
        os.nice(_NICENESS)


class Found(NamedTuple):
    """The route of a request.

    Attributes:
        ask: what the request asks for.
        route: answers clients that may.
        outer: makes of that route, guarded, the one that answers everybody, refusals too.
    """

    ask: Ask
    route: Route
    outer: Callable[[Route], Route] | None = None


@dataclass(frozen=True, eq=False)
class RouteContext:
    """The service, the limits and the helpers that inference routes work with.

    Attributes:
        service: answers requests.
        observer: traces and logs requests.
        forwarder: copies headers into request parameters; None when none are forwarded.
        max_input_size: bytes of JSON or raw input that a request may have.
        limits: limits of connections and streams.
        send_buffers: the limit on response bytes buffered for slow clients.
        decode_infer: reads the body of a request.
        encode_data: writes the data of a tensor as JSON.
        tasks: of requests that a task answers.
    """

    service: InferenceService
    observer: Observer
    forwarder: HeaderForwarder | None
    max_input_size: int
    limits: Http1Settings
    send_buffers: SendBufferLimit
    decode_infer: DecodeInfer
    encode_data: EncodeData
    tasks: Tasks = field(default_factory=Tasks)

    def send(
        self,
        exchange: Exchange,
        entry: VersionEntry,
        request: InferRequest,
        sink: Sink,
        traceparent: str,
        attributes: Mapping[str, str | int] = _NO_ATTRIBUTES,
    ) -> Call:
        """Submit the request of an exchange, with forwarded headers, observed while that is on."""
        if self.forwarder is not None:
            request = self.forwarder.forward(request, exchange.head.as_sent())
        if entry.split is not None:
            request = heed_headers(entry.split, request, exchange.head.as_sent())
        if not self.observer.enabled:
            return self.service.submit(entry, request, sink)
        origin = RequestOrigin("http", int(exchange.begun * 1e9) or monotonic_ns(), traceparent, attributes)
        return self.observer.observe(self.service, entry, request, sink, origin)

    def start_loaded(self, exchange: Exchange, entry: VersionEntry, start: Callable[[], None]) -> None:
        """Start to answer when an idle version is loaded, unless the client has gone."""
        task = self.tasks.start(self.service.wait_loaded(entry))
        exchange.on_disconnect = task.cancel

        def loaded(task: asyncio.Task[None]) -> None:
            if exchange.closed or task.cancelled():
                return
            try:
                task.result()
                start()
            except Exception as error:
                exchange.fail(error)

        task.add_done_callback(loaded)

    def run_in_thread(self, exchange: Exchange, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do long work off the event loop, then go on with its result unless the client has gone."""

        def done(future: asyncio.Future[T]) -> None:
            if exchange.closed:
                return
            try:
                then(future.result())
            except Exception as error:
                exchange.fail(error)

        asyncio.get_running_loop().run_in_executor(long_work(), work).add_done_callback(done)
