"""Routes about models and the server: lists, loads, health."""

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from app.core.encoding import to_json
from app.core.errors import ErrorCode, InferError
from app.ingress.access.caller import recorded
from app.ingress.compatible.route import TaskRoute
from app.ingress.http1.exchange import Exchange
from app.ingress.openai.catalog import Catalog
from app.ingress.rest.context import RouteContext
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.openai.errors import OpenAIError, invalid, too_large, unknown_model
from app.protocol.openai.models import list_models

_EXPLICIT: Final = "Model load/unload requires --model-control-mode=explicit"


class ModelsRoute(TaskRoute):
    """`GET /v1/models`, and of one model.

    Args:
        context: of the front.
        catalog: has the models.
        name: of one; "" for all.
    """

    def __init__(self, context: RouteContext, catalog: Catalog, name: str = "") -> None:
        super().__init__(context)
        self._catalog = catalog
        self._name = name

    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        found = self._catalog.describe(self._name) if self._name else list_models(self._catalog.described())
        exchange.respond(200, JSON_HEADERS, (to_json(found),))


class Turns:
    """Locks of models that are loaded or unloaded: a second request finds what the first has done."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, name: str) -> asyncio.Lock:
        """Return the lock of a model."""
        return self._locks.setdefault(name, asyncio.Lock())


class LoadRoute(TaskRoute):
    """`POST /v1/models/{name}/load` and `.../unload`, as Triton's front has them.

    Args:
        context: of the front.
        catalog: has the models.
        name: of the model.
        load: or else unload.
        explicit: the server loads models by request.
        turns: of the front.
    """

    def __init__(
        self, context: RouteContext, catalog: Catalog, name: str, load: bool, explicit: bool, turns: Turns
    ) -> None:
        super().__init__(context)
        self._turns = turns
        self._catalog = catalog
        self._name = name
        self._load = load
        self._explicit = explicit

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer in a task, which goes on when the client has gone."""
        self.context.tasks.start(self._run(exchange, body))

    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        if len(body) > self.context.max_input_size:
            raise too_large(len(body), self.context.max_input_size)
        with recorded(self._name):
            if not self._explicit:
                raise invalid(_EXPLICIT)
            async with self._turns.of(self._name):
                found = await (self._loaded() if self._load else self._unloaded())
        exchange.respond(200, JSON_HEADERS, (to_json(found),))

    async def _loaded(self) -> object:
        if self._is_served():
            raise invalid(f"Model '{self._name}' is already loaded")
        try:
            await self.context.service.load_model(self._name, None, {})
        except InferError as error:
            raise self._failed("load", error) from None
        return self._catalog.describe(self._name)

    async def _unloaded(self) -> object:
        if not self._is_served():
            raise unknown_model(self._name)
        try:
            await self.context.service.unload_model(self._name)
        except InferError as error:
            raise self._failed("unload", error) from None
        return {"status": "success", "model": self._name}

    def _is_served(self) -> bool:
        try:
            self.context.service.resolve(self._name)
        except InferError as error:
            return error.code is not ErrorCode.NOT_FOUND
        return True

    def _failed(self, verb: str, error: InferError) -> OpenAIError:
        return OpenAIError(f"Failed to {verb} model '{self._name}': {error.message}", code=error.code)


class ReadyRoute(TaskRoute):
    """`GET /health/ready`: 200 or 400, as Triton's front has it."""

    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        if not self.context.service.ready():
            raise invalid("Attached inference engine is not ready for inference requests.")
        exchange.respond(200, b"", ())
