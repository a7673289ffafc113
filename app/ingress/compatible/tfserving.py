"""TensorFlow Serving's REST API, also KServe's V1: status, metadata, `:predict`, `:classify`, `:regress`."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from app.core.encoding import to_json
from app.core.errors import ErrorCode, InferError, unsupported
from app.core.system.tasks import by_size
from app.core.tensors import InferResponse
from app.ingress.access.guard import Ask
from app.ingress.compatible.route import TaskRoute
from app.ingress.http1.exchange import Exchange, Route
from app.ingress.rest.context import Found, RouteContext
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.tfserving import descriptions, examples
from app.protocol.tfserving.rest import decode_predict, encode_predictions
from app.protocol.tfserving.signature import Signature, labelled_version, servable_not_found, signature_of
from app.routing.table import VersionEntry
from app.routing.waiting_room import resolve_loaded

_MODEL: Final = r"/v1/models/([^/:]+)(?:/versions/([0-9]+)|/labels/([^/:]+))?"
_POST: Final = re.compile(rf"{_MODEL}:(predict|classify|regress)")
_GET: Final = re.compile(rf"{_MODEL}(?:/(metadata))?")


def find_route(context: RouteContext, head: RequestHead) -> Found | None:
    """Return what a request asks for, and its route; None for a request of another protocol."""
    pattern = {"POST": _POST, "GET": _GET}.get(head.method)
    match = pattern.fullmatch(head.path) if pattern is not None else None
    if match is None:
        return None
    model, version, label = unquote(match[1]), match[2] or "", unquote(match[3] or "")
    if head.method == "GET":
        return Found(Ask("metadata", model), _DescribeRoute(context, model, version, label, bool(match[4])))
    return Found(Ask("inference", model), _INFERENCES[match[4]](context, model, version, label))


async def resolve(context: RouteContext, model: str, version: str, label: str) -> VersionEntry:
    """Return the version that answers.

    Raises:
        InferError: NOT_FOUND in TensorFlow Serving's words, and what `resolve` of the service raises.
    """
    service = context.service
    try:
        if label:
            version = labelled_version((await resolve_loaded(service, model, "")).model_config, label)
        entry = await resolve_loaded(service, model, version)
    except InferError as error:
        if error.code is ErrorCode.NOT_FOUND:
            raise servable_not_found(model, version) from None
        raise
    if entry.decoupled:
        raise unsupported("predict doesn't support models with decoupled transaction policy")
    return entry


class _ModelRoute(TaskRoute):
    """A route of a model; `label` names a version of it."""

    def __init__(self, context: RouteContext, model: str, version: str, label: str) -> None:
        super().__init__(context)
        self._model = model
        self._version = version
        self._label = label

    async def _resolve(self) -> VersionEntry:
        return await resolve(self.context, self._model, self._version, self._label)


class _DescribeRoute(_ModelRoute):
    def __init__(
        self, context: RouteContext, model: str, version: str, label: str, has_metadata: bool
    ) -> None:
        super().__init__(context, model, version, label)
        self._has_metadata = has_metadata

    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        found = await (self._metadata() if self._has_metadata else self._status())
        exchange.respond(200, JSON_HEADERS, (to_json(found),))

    async def _metadata(self) -> Any:
        entry = await self._resolve()
        return descriptions.metadata(self._model, entry.version, signature_of(entry.model_config))

    async def _status(self) -> Any:
        version = self._version
        if self._label:
            version = str((await self._resolve()).version)
        index = await self.context.service.repository_index()
        return descriptions.version_status(self._model, version, index.models)


class _PredictRoute(_ModelRoute):
    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        entry = await self._resolve()
        signature = signature_of(entry.model_config)
        decode = (self._model, str(entry.version), body, signature, self.context.max_input_size)
        predict = await by_size(len(body), decode_predict, *decode)
        response = await self.infer(exchange, entry, predict.request)
        size = sum(len(tensor.data) for tensor in response.outputs)
        encoded = await by_size(size, encode_predictions, response, signature, predict.rows)
        exchange.respond(200, JSON_HEADERS, (encoded,))


class _ExamplesRoute(_ModelRoute, ABC):
    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        entry = await self._resolve()
        signature = signature_of(entry.model_config)
        limit = self.context.max_input_size
        found = await by_size(len(body), examples.decode_examples, body, signature, limit)
        wanted = self.outputs(signature)
        request = examples.examples_request(self._model, entry.version, found, signature, wanted)
        response = await self.infer(exchange, entry, request)
        exchange.respond(200, JSON_HEADERS, (self.answer(response, signature, len(found)),))

    @staticmethod
    @abstractmethod
    def outputs(signature: Signature) -> list[str]:
        """Return the outputs that are read."""

    @staticmethod
    @abstractmethod
    def answer(response: InferResponse, signature: Signature, count: int) -> bytes:
        """Return the body of the answer for so many examples."""


class _ClassifyRoute(_ExamplesRoute):
    outputs = staticmethod(examples.classify_outputs)

    @staticmethod
    def answer(response: InferResponse, signature: Signature, count: int) -> bytes:
        return examples.encode_classes(examples.classes(response, signature, count))


class _RegressRoute(_ExamplesRoute):
    outputs = staticmethod(examples.regress_outputs)

    @staticmethod
    def answer(response: InferResponse, signature: Signature, count: int) -> bytes:
        return examples.encode_values(examples.values(response, signature, count))


_INFERENCES: Final[dict[str, Callable[..., Route]]] = {
    "predict": _PredictRoute,
    "classify": _ClassifyRoute,
    "regress": _RegressRoute,
}
