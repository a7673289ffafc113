"""Requests to the REST API without a server."""

import json


async def call(api, method, path, body):
    """Run one request through an ASGI application; return status and body."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [],
        "query_string": b"",
        "root_path": "",
    }
    await api(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def error(answer):
    return answer[0], json.loads(answer[1])["error"]
