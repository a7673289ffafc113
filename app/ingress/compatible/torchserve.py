"""TorchServe's inference API, for models that `nereid migrate torchserve` has made."""

import re
from typing import Final
from urllib.parse import unquote

from app.core.errors import ErrorCode, InferError
from app.core.system.tasks import by_size
from app.ingress.access.guard import Ask
from app.ingress.compatible.route import TaskRoute
from app.ingress.http1.exchange import Exchange
from app.ingress.rest.context import Found, RouteContext
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.torchserve import (
    PREDICTION_FAILED,
    decode_prediction,
    encode_failure,
    encode_prediction,
    encode_prediction_failed,
    model_not_found,
)
from app.routing.waiting_room import resolve_loaded

_PREDICTIONS: Final = re.compile(r"/predictions/([^/]+)(?:/([^/]+))?")
_STATUSES: Final = {ErrorCode.UNAVAILABLE: 503, ErrorCode.INVALID_ARG: 400, ErrorCode.NOT_FOUND: 404}


def find_route(context: RouteContext, head: RequestHead) -> Found | None:
    """Return what a request asks for, and its route; None for a request of another protocol."""
    if head.path == "/ping" and head.method in ("GET", "OPTIONS"):
        return Found(Ask("health", open=True), _PingRoute(context))
    match = _PREDICTIONS.fullmatch(head.path)
    if match is None or head.method not in ("POST", "PUT"):
        return None
    model, version = unquote(match[1]), unquote(match[2] or "")
    content_type = head.get(b"content-type") or ""
    return Found(Ask("inference", model), _PredictionsRoute(context, model, version, content_type))


class _PingRoute(TaskRoute):
    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        ready = self.context.service.ready()
        status = b'{\n  "status": "%b"\n}\n' % (b"Healthy" if ready else b"Unhealthy")
        exchange.respond(200 if ready else 500, JSON_HEADERS, (status,))


class _PredictionsRoute(TaskRoute):
    def __init__(self, context: RouteContext, model: str, version: str, content_type: str) -> None:
        super().__init__(context)
        self._model = model
        self._version = version.partition(".")[0]  # TorchServe's are 1.0, ours 1
        self._content_type = content_type

    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        try:
            content_type, answer = await self._predict(exchange, body)
        except InferError as error:
            if error.code is ErrorCode.INTERNAL:
                exchange.respond(PREDICTION_FAILED, JSON_HEADERS, (encode_prediction_failed(),))
                return
            if error.code not in _STATUSES:
                raise
            status = _STATUSES[error.code]
            exchange.respond(status, JSON_HEADERS, (encode_failure(status, error.message),))
            return
        # Without a type of its own an answer has none, as TorchServe sends it.
        exchange.respond(200, b"Content-Type: %b\r\n" % content_type if content_type else b"", (answer,))

    async def _predict(self, exchange: Exchange, body: memoryview) -> tuple[bytes, bytes]:
        try:
            entry = await resolve_loaded(self.context.service, self._model, self._version)
        except InferError as error:
            if error.code is ErrorCode.NOT_FOUND:
                raise model_not_found(self._model, self._version) from None
            raise
        arguments = (self._model, str(entry.version), body, self._content_type, entry.model_config)
        request = await by_size(len(body), decode_prediction, *arguments)
        return encode_prediction(await self.infer(exchange, entry, request))
