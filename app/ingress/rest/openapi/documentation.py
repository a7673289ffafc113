"""`/openapi.json`, `/docs` (Swagger UI) and `/manual/`, with their assets: they need no other server."""

import asyncio
import mimetypes
from functools import partial
from importlib import resources
from typing import Final

from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException

from app.ingress.rest.home.site import Site
from app.ingress.rest.openapi.api import RestApi, RestRoute

_SCRIPT: Final = "swagger-ui-bundle.js"
_STYLE: Final = "swagger-ui.css"
_ICON: Final = "favicon.png"
MANUAL: Final = "/manual/"


def add_documentation(api: RestApi) -> None:
    """Register the routes of the document and of the page that shows it."""

    async def document(request: Request) -> Response:
        root = request.scope["root_path"]  # of a gateway
        return JSONResponse({**api.openapi(), **({"servers": [{"url": root}]} if root else {})})

    api.add(RestRoute("metadata", "GET", "/openapi.json", document, documented=False))
    api.add(RestRoute("metadata", "GET", "/docs", _page, documented=False))
    for name in (_SCRIPT, _STYLE, _ICON):
        api.add(RestRoute("metadata", "GET", f"/docs/{name}", partial(_asset, name), documented=False))


def add_manual(api: RestApi, site: Site) -> None:
    """Register the routes of the documentation as a site."""

    async def enter(request: Request) -> Response:
        return RedirectResponse(f"{request.scope['root_path']}{MANUAL}")

    async def answer(page: str) -> Response:
        file = site.find(page)
        if file is None:
            raise HTTPException(404)
        content = await asyncio.to_thread(file.path.read_bytes)
        return Response(content, headers=site.headers, media_type=file.kind)

    api.add(RestRoute("metadata", "GET", MANUAL.rstrip("/"), enter, documented=False))
    api.add(RestRoute("metadata", "GET", f"{MANUAL}{{page:path}}", answer, documented=False))


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
