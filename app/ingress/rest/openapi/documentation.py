"""`/openapi.json`, and `/docs`: Swagger UI with its assets, so that it works without any other server."""

import asyncio
import mimetypes
from functools import partial
from importlib import resources
from typing import Final

from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import JSONResponse

from app.ingress.rest.openapi.api import RestApi, RestRoute

_SCRIPT: Final = "swagger-ui-bundle.js"
_STYLE: Final = "swagger-ui.css"
_ICON: Final = "favicon.png"


def add_documentation(api: RestApi) -> None:
    """Register the routes of the document and of the page that shows it."""

    async def document(request: Request) -> Response:
        root = request.scope["root_path"]  # of a gateway
        return JSONResponse({**api.openapi(), **({"servers": [{"url": root}]} if root else {})})

    api.add(RestRoute("metadata", "GET", "/openapi.json", document, documented=False))
    api.add(RestRoute("metadata", "GET", "/docs", _page, documented=False))
    for name in (_SCRIPT, _STYLE, _ICON):
        api.add(RestRoute("metadata", "GET", f"/docs/{name}", partial(_asset, name), documented=False))


async def _page(request: Request) -> Response:
    root = request.scope["root_path"]
    return get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json",
        title="Nereid",
        swagger_js_url=f"{root}/docs/{_SCRIPT}",
        swagger_css_url=f"{root}/docs/{_STYLE}",
        swagger_favicon_url=f"{root}/docs/{_ICON}",
        swagger_ui_parameters={"validatorUrl": None},  # By default, a badge asks a public validator.
    )


async def _asset(name: str) -> Response:
    # The package is data here: only its static files are used.
    file = resources.files("fastapi_offline") / "static" / name
    return Response(await asyncio.to_thread(file.read_bytes), media_type=mimetypes.guess_type(name)[0])
