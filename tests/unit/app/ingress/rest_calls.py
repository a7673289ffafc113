"""Requests to the REST API without a server."""

import json
from collections.abc import Callable

from starlette.types import ASGIApp, Message

Ask = Callable[..., tuple[int, bytes]]
"""Sends a request: method, path and a body as bytes or as a document."""


async def call(api: ASGIApp, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Run one request through an ASGI application; return status and body."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    bare, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": bare,
        "headers": [],
        "query_string": query.encode(),
        "root_path": "",
    }
    await api(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def error(answer: tuple[int, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[1])["error"]
