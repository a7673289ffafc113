"""A video on an HTTP server as a file that FFmpeg reads and seeks in.

Python's client makes the connection, not FFmpeg: to the address that was checked, and again for a redirect.
"""

import http.client
import io
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urljoin

from app.core.errors import InferError, invalid_arg, not_found, unavailable
from app.core.installed.installation import PROGRAM
from backends.rtsp.policy import AllowList, Endpoint, redacted
from backends.rtsp.relay import Connection

_MAX_REDIRECTS: Final = 3
_SKIP: Final = 256 << 10
"""A seek forward by at most so many bytes reads them; beyond it a new request is cheaper."""
_END_OF_FILE: Final = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


class _Client(http.client.HTTPConnection):
    """An HTTP connection over a `Connection`."""

    def __init__(self, endpoint: Endpoint, connection: Connection) -> None:
        super().__init__(endpoint.host, endpoint.port)
        self._connection = connection

    def connect(self) -> None:
        self.sock = self._connection.connect()


class HttpFile(io.RawIOBase):
    """A read-only file at a URL; it can seek if the server understands ranges.

    `abort` may be called from any thread, everything else from one.

    Attributes:
        error: why reading has ended, if not at the end of the file. FFmpeg, which reads, does not pass it on.
    """

    def __init__(self, allowed: AllowList, url: str, timeout: float) -> None:
        """`timeout` in seconds, of connecting and of each read."""
        self._allowed = allowed
        self._url = url
        self._timeout = timeout
        self.error: Exception | None = None
        self._connection: Connection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._position = 0
        self._size: int | None = None
        self._ranges = False
        self._aborted = False

    def open(self) -> "HttpFile":
        """Make the first request.

        Raises:
            InferError: INVALID_ARG for what is not allowed, NOT_FOUND or UNAVAILABLE by the server's answer.
            OSError: the connection failed.
        """
        self._request()
        return self

    def abort(self) -> None:
        """End the connection: whoever reads gets an error."""
        self._aborted = True
        if self._connection is not None:
            self._connection.abort()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._ranges and self._size is not None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if not self.seekable():
            raise OSError("the server does not understand ranges")
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size or 0}[whence]
        target = max(0, base + offset)
        if self._response is not None and 0 <= target - self._position <= _SKIP:
            while self._position < target and self.read(target - self._position):
                pass
        if target != self._position:
            self._position = target
            self._end_response()
        return target

    def read(self, size: int = -1) -> bytes:
        if self.error is not None:
            return b""
        try:
            return self._read(size)
        except (OSError, InferError, http.client.HTTPException) as error:
            self.error = error
            self._end_response()
            return b""

    def _read(self, size: int) -> bytes:
        if self._response is None:
            if self._size is not None and self._position >= self._size:
                return b""
            self._request()
        if self._response is None:
            return b""
        # One read of the socket: what a live source has sent must not wait for more.
        data = self._response.read1(size if size >= 0 else _SKIP)
        self._position += len(data)
        return data

    def _end_response(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def _request(self) -> None:
        """Ask for everything from the position on, following redirects to where the model may connect."""
        url = self._url
        for _ in range(_MAX_REDIRECTS + 1):
            parts = self._allowed.split(url)
            if parts.scheme not in ("http", "https"):
                raise invalid_arg(f"'{redacted(parts)}' is no redirect that is followed")
            response = self._ask(parts)
            location = response.headers.get("Location", "")
            if response.status not in (301, 302, 303, 307, 308) or not location:
                self._accept(parts, response)
                return
            response.close()
            url = urljoin(url, location)
        raise unavailable(f"'{redacted(parts)}' redirects more than {_MAX_REDIRECTS} times")

    def _ask(self, parts: SplitResult) -> http.client.HTTPResponse:
        endpoint = self._allowed.endpoint(parts)
        connection = self._connection = Connection(endpoint, self._timeout)
        if self._aborted:
            raise ConnectionAbortedError("aborted")
        client = _Client(endpoint, connection)
        try:
            client.connect()
            path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
            client.request("GET", path, headers=self._headers(parts))
            response = client.getresponse()
            if client.sock is not None:
                client.sock.close()  # for good when the response is
            return response
        except http.client.HTTPException as error:
            client.close()
            raise unavailable(f"'{redacted(parts)}': no valid HTTP answer ({type(error).__name__})") from None
        except BaseException:
            client.close()
            raise

    def _headers(self, parts: SplitResult) -> dict[str, str]:
        headers = {
            "Range": f"bytes={self._position}-",
            "User-Agent": PROGRAM,
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        if parts.username is not None:
            headers["Authorization"] = _basic(parts)
        return headers

    def _accept(self, parts: SplitResult, response: http.client.HTTPResponse) -> None:
        self._end_response()
        if response.status == _END_OF_FILE and self._position:
            response.close()
            self._size = self._position
            return
        if response.status == HTTPStatus.PARTIAL_CONTENT:
            size = response.headers.get("Content-Range", "").rpartition("/")[2]
            self._ranges, self._size = True, int(size) if size.isdigit() else None
        elif response.status == HTTPStatus.OK and not self._position:
            self._size = None
        else:
            response.close()
            raise _refused(parts, response)
        self._response = response


def _basic(parts: SplitResult) -> str:
    from base64 import b64encode

    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def _refused(parts: SplitResult, response: Any) -> InferError:
    text = f"'{redacted(parts)}': the HTTP server answered {response.status} {response.reason[:100]}"
    return (not_found if response.status == HTTPStatus.NOT_FOUND else unavailable)(text)
