"""`/v1/chat/completions` and `/v1/completions`: each continuation is a request to the model of its own."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from app.core.errors import internal
from app.core.inference import Call
from app.core.system.tasks import by_size
from app.core.tensors import InferRequest, InferResponse
from app.ingress.http1.exchange import Exchange, describe_error
from app.ingress.openai.body_route import BODIES, BodyRoute
from app.ingress.openai.catalog import Catalog, Found
from app.ingress.openai.exchange import OpenAIExchange
from app.ingress.openai.job import Job, Kind
from app.ingress.openai.template import renderer_of
from app.ingress.rest.context import RouteContext
from app.ingress.rest.stream_writer import EVENT_STREAM, Event, StreamWriter
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.openai.errors import wrong_task
from app.protocol.openai.logprobs import Drawn
from app.protocol.openai.texts.answers import Head, Part, Stream
from app.protocol.openai.texts.requests import Defaults
from app.settings.openai import OpenAISettings

_HEADERS: Final = EVENT_STREAM + b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"


class TextRoute(BodyRoute):
    """Answers requests for texts.

    Args:
        kind: of the path.
        context: of the front.
        catalog: has the models.
        settings: of the front.
        head: of the requests.
    """

    def __init__(
        self,
        kind: Kind,
        context: RouteContext,
        catalog: Catalog,
        settings: OpenAISettings,
        head: RequestHead,
    ) -> None:
        super().__init__(context, catalog, head)
        self._kind = kind
        self._defaults = Defaults(settings.default_max_tokens, settings.tool_parser, settings.max_tool_bytes)
        self._template = settings.template

    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        assert isinstance(exchange, OpenAIExchange), "OpenAIRoute is around it"
        limit, size = self.context.max_input_size, len(body)
        name, fields = await self.read(body)
        found = await self.catalog.find(name, self._kind.task)
        known = frozenset(found.entry.inputs)
        request = await BODIES.by_size(size, self._kind.read, fields, found.text, known, self._defaults)
        if request.chat is not None and not found.text.renders:
            request.prompts = [await self._rendered(found, request.chat, size)]
        job = Job(self._kind, found, request, self._defaults.max_tool_bytes)
        requests = await BODIES.by_size(size, job.requests, exchange.request_id, limit)
        await (self._stream if request.stream else self._whole)(exchange, job, requests)

    async def _rendered(self, found: Found, chat: Mapping[str, Any], size: int) -> str:
        """Return the prompt of a chat, of a request of so many bytes."""
        own = found.entry.text.template
        template = own if own.source else self._template
        if not template.source:
            raise wrong_task(found.name, "chat")
        strip_bos = found.text.settings.strip_bos is not False
        return await renderer_of(template.source).prompt(template, chat, strip_bos, size)

    async def _stream(self, exchange: Exchange, job: Job, requests: list[InferRequest]) -> None:
        writer = StreamWriter(self.context, exchange, TextEvents(job, exchange.head.path), len(requests))
        try:
            for index, request in enumerate(requests):
                writer.calls.append(self._send(exchange, job, request, partial(writer.deliver, index)))
            await writer.write()
            if job.ended:
                job.count(self.catalog.generation)
        except BaseException:  # also of a client that has gone
            writer.cancel()
            raise

    async def _whole(self, exchange: Exchange, job: Job, requests: list[InferRequest]) -> None:
        gathered = Gathered(job, self.context.limits.stream_bytes)
        calls: list[Call] = gathered.calls
        try:
            for index, request in enumerate(requests):
                calls.append(self._send(exchange, job, request, partial(gathered.deliver, index)))
            head = await gathered.head
        except BaseException:
            gathered.cancel()
            raise
        job.count(self.catalog.generation)
        parts = gathered.parts()
        size = sum(len(part.text) for part in parts)
        answer = await by_size(size, job.form.whole, head, parts, job.usage())
        exchange.respond(200, JSON_HEADERS, (answer,))

    def _send(
        self, exchange: Exchange, job: Job, request: InferRequest, sink: Callable[[InferResponse], None]
    ) -> Call:
        entry, context = job.found.entry, self.context
        if not context.observer.enabled:
            return context.send(exchange, entry, request, sink, self.traceparent)
        span = job.span()
        return context.send(
            exchange, entry, request, partial(span.deliver, sink), self.traceparent, span.attributes
        )


class TextEvents:
    """Makes chunks of responses.

    Args:
        job: to answer.
        path: of the request, for the log.
    """

    headers = _HEADERS

    def __init__(self, job: Job, path: str) -> None:
        self._job = job
        self._path = path
        self._stream: Stream | None = None

    async def event(self, index: int, response: InferResponse) -> Event:
        job = self._job
        if job.choices[index].reason:  # it was ended here
            return Event(b"", False)
        try:
            part = job.receive(index, response)
            data = b"" if self._stream is not None else self._begun(response)
            assert self._stream is not None
            data += self._stream.part(part)
        except Exception as error:
            failure = describe_error(error, self._path)
            return Event(b"" if self._stream is None else self._stream.fail(failure), True, refusal=failure)
        last = bool(part.reason) and job.ended
        if last:
            data += self._stream.end(job.usage())
        return Event(data, last, cancel=job.choices[index].cut)

    def _begun(self, first: InferResponse) -> bytes:
        """Begin the stream by the first response."""
        job = self._job
        self._stream = job.form.stream(job.head(first), job.request.usage)
        return self._stream.begin([job.opening(index) for index in range(len(job.choices))])


class Gathered:
    """The sink of all requests of an answer in one piece.

    Args:
        job: to answer.
        limit: bytes of its texts.

    Attributes:
        calls: in flight.
        head: is there when all choices have ended; or the failure of one as an exception.
    """

    def __init__(self, job: Job, limit: int) -> None:
        self.calls: list[Call] = []
        self.head: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        self._job = job
        self._left = limit
        self._first: InferResponse | None = None
        self._texts: list[list[str]] = [[job.opening(index)] for index in range(len(job.choices))]
        self._drawn: list[list[Drawn]] = [[] for _ in job.choices]

    def cancel(self) -> None:
        """Cancel what is in flight; nobody waits for it."""
        self.head.cancel()
        for call in self.calls:
            call.cancel()

    def deliver(self, index: int, response: InferResponse) -> None:
        """Receive a response to one of the requests."""
        job = self._job
        if self.head.done() or job.choices[index].reason:
            return
        try:
            part = job.receive(index, response)
        except Exception as error:
            self.head.set_exception(error)
            return
        self._first = self._first or response
        self._texts[index].append(part.text)
        self._drawn[index] += part.drawn
        self._left -= len(part.text)
        if self._left < 0:
            self.head.set_exception(internal("the model's texts are too long"))
        elif job.choices[index].cut:
            self.calls[index].cancel()
        if part.reason and job.ended and not self.head.done():
            self.head.set_result(job.head(self._first))

    def parts(self) -> list[Part]:
        """Return the choices."""
        job = self._job
        return [
            Part(
                index,
                "".join(texts),
                job.reason(index),
                self._drawn[index],
                len(texts[0]),
                [] if reader is None else reader.whole(),
            )
            for index, (texts, reader) in enumerate(zip(self._texts, job.readers, strict=True))
        ]
