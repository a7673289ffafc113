"""A proxy in front of our front that answers as Triton's does: the list of all differences on the wire.

Triton's front validates by pydantic (422, a list of messages), knows no unknown model but by 400 where it
infers, and says errors as `detail` alone; `error` stays beside it, without which newer clients of OpenAI say
no text. Everything else passes as it is.
"""

import json
import re
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

_TIMEOUT_S: Final = 100.0
_PIECE: Final = 1 << 16
_ITS_OWN: Final = re.compile(
    r"Unknown (model|LoRA)|can only be used when|only single choice|logit.bias|suffix|best_of|non-empty"
    r"|requires (CreateChat|--tool)|'tools' has no function|already loaded|load/unload|cannot be guided"
    r"|is not for "
)
"""Texts that Triton's front answers by 400 itself, behind its schemas."""
_MESSAGES: Final = (
    (re.compile(r"Missing required parameter|None is none of"), "Field required"),
    (
        re.compile(r"'messages': must not be empty"),
        "List should have at least 1 item after validation, not 0",
    ),
    (re.compile(r"must not be empty"), "Value should have at least 1 item after validation, not 0"),
    (re.compile(r"must be from -?[\d.]+ to ([\d.]+)"), r"Input should be less than or equal to \1"),
    (re.compile(r"expected a text|as token ids"), "Input should be a valid string"),
)
"""What pydantic says instead of our texts."""
_HOP: Final = {"connection", "content-length", "host", "transfer-encoding"}


def as_triton(method: str, path: str, asked: bytes, status: int, document: Any) -> tuple[int, Any]:
    """Return status and body as Triton's front has them, of a request with a body."""
    if status < 400 or not isinstance(document, dict) or "error" not in document:
        return status, document
    error, text = document["error"], document.get("detail", "")
    if status in (401, 413):
        return status, {"error": error}
    if text == "Invalid 'model': must not be empty":
        return 400, document | {"detail": "Unknown model: "}
    if text.endswith("is not for chat"):  # without a template
        return 500, document | {"detail": "Unknown tokenizer"}
    if text.startswith("Unknown "):  # tests of LoRA look at all of the body
        document = {"detail": text}
    if status == 404 and method == "POST" and error["code"] == "model_not_found":
        # What cannot be loaded because it is not there is a failure of the server.
        return (500 if path.endswith("/load") else 400), document
    if status == 400 and error["param"] and not _ITS_OWN.search(text):
        if text.startswith("Missing") and error["param"] in json.loads(asked):
            text = "expected a text"  # a null is no missing field there
        message = next((found.expand(to) for one, to in _MESSAGES if (found := one.search(text))), text)
        detail = [{"loc": ["body", error["param"]], "msg": message, "type": "value_error"}]
        return 422, {"error": error | {"message": message}, "detail": detail}
    return status, document


class Adapter:
    """The proxy, in threads of this process.

    Args:
        port: to listen on.
        upstream: the port of our front.
    """

    def __init__(self, port: int, upstream: int) -> None:
        handler = type("Handler", (_Handler,), {"upstream": upstream})
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = 0

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Pass a request on."""
        self._pass_on()

    def do_POST(self) -> None:
        """Pass a request on."""
        self._pass_on()

    def _pass_on(self) -> None:
        connection = HTTPConnection("127.0.0.1", self.upstream, timeout=_TIMEOUT_S)
        try:
            chunked = self.headers.get("transfer-encoding", "") == "chunked"
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            size = int(self.headers.get("content-length", 0))
            body: Iterator[bytes] | bytes = self._chunks() if chunked else self.rfile.read(size)
            try:
                connection.request(self.command, self.path, body, headers, encode_chunked=chunked)
            except BrokenPipeError:  # it has answered before it has read all
                self.close_connection = True
            self._answer(connection.getresponse(), body if isinstance(body, bytes) else b"")
        except OSError:
            self.close_connection = True
        finally:
            connection.close()

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, response: HTTPResponse, asked: bytes) -> None:
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            self._stream(response)
            return
        status, raw = response.status, response.read()
        if kind.startswith("application/json"):
            status, document = as_triton(self.command, self.path, asked, status, json.loads(raw))
            raw = json.dumps(document).encode()
        self._begin(response, status, {"Content-Length": str(len(raw))})
        self.wfile.write(raw)

    def _stream(self, response: HTTPResponse) -> None:
        self._begin(response, response.status, {"Transfer-Encoding": "chunked"})
        while piece := response.read1(_PIECE):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _begin(self, response: HTTPResponse, status: int, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in response.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        for name, value in more.items():
            self.send_header(name, value)
        self.end_headers()
