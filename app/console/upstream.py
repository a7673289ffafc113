"""The server behind the console: what is asked for pages, and what is passed on for them."""

import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp import web
from yarl import URL

from app.console.source import Refused

_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 10.0
_MAX_ANSWER: Final = 32 << 20
_MAX_CONNECTIONS: Final = 100
_PIECE: Final = 64 << 10
_NOT_SENT: Final = frozenset(
    (
        "connection", "cookie", "expect", "forwarded", "host", "keep-alive", "origin", "proxy-authenticate",
        "proxy-authorization", "referer", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
"""Headers of a request that are of its connection, or that only browsers send."""
_NOT_RETURNED: Final = frozenset(
    ("connection", "date", "keep-alive", "set-cookie", "transfer-encoding", "upgrade")
)
SANDBOX: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of answers of the server: whatever a model says in them, it is no page of the console."""


class Upstream:
    """Asks the server at `url`, such as http://127.0.0.1:8000; `ca` is the file of its certificate's root.

    A certificate of a server on loopback need not be trusted: nobody else can answer there.
    """

    def __init__(self, url: str, ca: str = "", trusted: bool = False) -> None:
        self.url = url.rstrip("/")
        context = ssl.create_default_context(cafile=ca or None)
        if trusted:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._ssl = context
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Prepare to ask."""
        connector = aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, ssl=self._ssl)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, authorization: str = "") -> bytes:
        """Return the body of an answer; raises as `Ask` says."""
        assert self._session is not None
        headers = {"Authorization": authorization} if authorization else {}
        limit = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=_CONNECT_S)
        address = URL(self.url + path, encoded=True)
        try:
            asked = self._session.get(address, headers=headers, timeout=limit, allow_redirects=False)
            async with asked as answer:
                body = await answer.content.read(_MAX_ANSWER)
                while not answer.content.at_eof() and len(body) < _MAX_ANSWER:
                    body += await answer.content.read(_MAX_ANSWER - len(body))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise OSError(str(error) or "no answer in time") from error
        if answer.status != 200:
            raise Refused(answer.status, body[:2000].decode(errors="replace"))
        return body

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Send a page's request on, and its answer back, piece by piece."""
        assert self._session is not None
        body = request.content.iter_chunked(_PIECE) if request.can_read_body else None
        address = URL(self.url + request.raw_path, encoded=True)
        headers = _sent(request.headers)
        try:
            asked = self._session.request(
                request.method, address, headers=headers, data=body, allow_redirects=False
            )
            async with asked as answer:
                return await _returned(request, answer)
        except aiohttp.ClientError as error:
            text = f"the server at {self.url} does not answer: {error}"
            return web.json_response({"error": text}, status=502, headers=SANDBOX)


def _sent(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if name.lower() not in _NOT_SENT and not name.lower().startswith("sec-")
    }


async def _returned(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    kept = {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_RETURNED}
    response = web.StreamResponse(status=answer.status, headers=kept | SANDBOX)
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
    except (
        aiohttp.ClientError
    ):  # one end is gone in the middle of an answer: the other must not take it for whole
        if request.transport is not None:
            request.transport.abort()
    return response
