"""The page at `/`, for people who open the server's address in a browser."""

from html import escape

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from app.ingress.rest.openapi.api import RestApi, RestRoute

_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Nereid</title>
<h1>Nereid</h1>
<p>An inference server with the HTTP and gRPC APIs of Triton.</p>
<ul>
<li><a href="{root}/docs">Documentation of the HTTP API</a>,
<a href="{root}/openapi.json">as an OpenAPI document</a></li>
<li><a href="{root}/v2">Version and extensions</a></li>
<li><a href="{root}/v2/models">Models and their states</a></li>
{metrics}</ul>
</html>
"""
_METRICS = '<li><a href="http://{host}:{port}/metrics">Metrics</a></li>\n'


def add_home(api: RestApi, metrics_port: int) -> None:
    """Register the route; a `metrics_port` of 0 leaves out the link to the metrics."""

    async def home(request: Request) -> Response:
        host = request.url.hostname or "localhost"
        host = escape(f"[{host}]" if ":" in host else host)
        metrics = _METRICS.format(host=host, port=metrics_port) if metrics_port else ""
        return HTMLResponse(_PAGE.format(metrics=metrics, root=request.scope["root_path"]))

    api.add(RestRoute("metadata", "GET", "/", home, documented=False, response_class=HTMLResponse))
