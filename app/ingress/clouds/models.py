"""SageMaker's `/models`: many models in one server, each loaded from a directory that the platform names."""

import os
import re
from typing import Any, Final

from app.core.encoding import to_json
from app.core.errors import InferError, invalid_arg, not_found
from app.ingress.access.caller import recorded
from app.ingress.http1.exchange import Exchange
from app.ingress.rest.context import RouteContext
from app.protocol.http import strict_json
from app.protocol.http.v2 import JSON_HEADERS

_MAX_REQUEST: Final = 64 << 10
_ROOT: Final = "/opt/ml/models"
_URL: Final = re.compile(r"/[0-9A-Za-z._-]+/model(/[0-9A-Za-z._-]+)?")


class ModelsRoute:
    """Loads, lists, shows and unloads models.

    Args:
        context: of the front.
        method: GET, POST or DELETE.
        model: the name in the path; "" without one.
    """

    def __init__(self, context: RouteContext, method: str, model: str) -> None:
        self._context = context
        self._method = method
        self._model = model

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer in a task, which goes on when the client has gone."""
        self._context.tasks.start(self._run(exchange, bytes(body[: _MAX_REQUEST + 1])))

    async def _run(self, exchange: Exchange, body: bytes) -> None:
        try:
            if self._method == "GET":
                answer = to_json(await self._show())
                exchange.respond(200, JSON_HEADERS, (answer,))
                return
            await (self._load(body) if self._method == "POST" else self._unload())
            exchange.respond(200, b"", ())
        except Exception as error:
            exchange.fail(error)

    async def _show(self) -> Any:
        found = await self._context.service.registered_models()
        if not self._model:
            return {"models": [_described(name, url) for name, url in sorted(found.items())]}
        if self._model not in found:
            raise not_found(f"model '{self._model}' is not loaded")
        return _described(self._model, found[self._model])

    async def _load(self, body: bytes) -> None:
        with recorded("") as call:
            call.subject, url = _load_request(body)
            await self._context.service.register_model(call.subject, _directory(url))

    async def _unload(self) -> None:
        with recorded(self._model):
            if self._model not in await self._context.service.registered_models():
                raise not_found(f"model '{self._model}' is not loaded")
            await self._context.service.unload_model(self._model, unload_dependents=True)


def _described(name: str, url: str) -> dict[str, str]:
    return {"modelName": name, "modelUrl": url}


def _load_request(body: bytes) -> tuple[str, str]:
    """Return the name of a model and where it is said to be.

    Raises:
        InferError: INVALID_ARG for another body than {"model_name": ..., "url": ...}.
    """
    if len(body) > _MAX_REQUEST:
        raise invalid_arg(f"request of more than {_MAX_REQUEST} bytes")
    document = strict_json.parse_first(body)
    fields = document if isinstance(document, dict) else {}
    name, url = fields.get("model_name"), fields.get("url")
    if not (isinstance(name, str) and isinstance(url, str) and name):
        raise invalid_arg("expected 'model_name' and 'url' as strings")
    return name, url


def _directory(url: str) -> str:
    """Return the directory of a load.

    Raises:
        InferError: INVALID_ARG for one that SageMaker does not make.
    """
    path = os.path.normpath(url)
    if not path.startswith(f"{_ROOT}/") or not _URL.fullmatch(path.removeprefix(_ROOT)):
        raise _invalid_url(url)
    if not os.path.realpath(path).startswith(f"{os.path.realpath(_ROOT)}/"):
        raise _invalid_url(url)
    return path


def _invalid_url(url: str) -> InferError:
    return invalid_arg(
        f"Invalid \"url\" '{url}': expected a path of the form {_ROOT}/<hash>/model[/<subdir>]"
    )
