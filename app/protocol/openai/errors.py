"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}, "detail": message}`.

`detail` is what clients of Triton's front read. Texts are those of Triton's front where it has one. No I/O.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from app.core.encoding import to_json
from app.core.errors import ErrorCode, Failure, InferError, shortened
from app.protocol.status import STATUSES, http_headers, http_status

_INVALID: Final = "invalid_request_error"
_MAX_PARAM: Final = 256
_SERVER: Final = "server_error"
_CONTEXT: Final = re.compile(r"context length|max(imum)?[ _]model[ _]len", re.IGNORECASE)
"""How the texts of vLLM's backend and of `llm` say that a prompt is too long."""
_CONTENT_TOO_LARGE: Final = 413


class OpenAIError(InferError):
    """What is wrong with a request, with the field that is.

    Attributes:
        param: the field, as `messages[0].content`; None for none.
        slug: the `code` of the answer; None for that of the error code.
        status: of the answer; 0 for that of the error code.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        slug: str | None = None,
        code: ErrorCode = ErrorCode.INVALID_ARG,
        status: int = 0,
    ) -> None:
        super().__init__(code, message)
        self.param = None if param is None else shortened(param, _MAX_PARAM)
        self.slug = slug
        self.status = status


def invalid(message: str, param: str | None = None) -> OpenAIError:
    """Return the error of a field, or of a body."""
    return OpenAIError(message, param)


def refused(param: str, why: str = "") -> OpenAIError:
    """Return the error of a field that this server does not have; `why` says what to do."""
    return OpenAIError(f"'{param}' is not supported{': ' if why else ''}{why}", param)


def unknown_argument(name: str) -> OpenAIError:
    """Return the error of a field that nobody knows."""
    return OpenAIError(f"Unrecognized request argument supplied: {shortened(name, _MAX_PARAM)}", name)


def unknown_model(name: str) -> OpenAIError:
    """Return the error of a model that is not there."""
    return OpenAIError(f"Unknown model: {name}", "model", "model_not_found", ErrorCode.NOT_FOUND)


def wrong_task(name: str, task: str) -> OpenAIError:
    """Return the error of a model that is there, but not for this."""
    return OpenAIError(f"The model '{name}' is not for {task}", "model", "model_not_supported")


def too_large(size: int, limit: int) -> OpenAIError:
    """Return the error of a body that is too large."""
    text = (
        f"Request size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    return OpenAIError(text, None, "content_too_large", status=_CONTENT_TOO_LARGE)


class Answer(NamedTuple):
    """An error on the wire.

    Attributes:
        status: of HTTP.
        headers: because of the error.
        body: JSON.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Row(NamedTuple):
    status: int
    kind: str
    slug: str | None


_ROWS: Final[dict[ErrorCode, _Row]] = {
    ErrorCode.INTERNAL: _Row(500, _SERVER, None),
    ErrorCode.UNKNOWN: _Row(500, _SERVER, None),
    ErrorCode.NOT_FOUND: _Row(404, _INVALID, "model_not_found"),
    ErrorCode.INVALID_ARG: _Row(400, _INVALID, None),
    ErrorCode.UNSUPPORTED: _Row(400, _INVALID, None),
    ErrorCode.ALREADY_EXISTS: _Row(400, _INVALID, None),
    ErrorCode.CANCELLED: _Row(499, _SERVER, None),
    ErrorCode.UNAVAILABLE: _Row(503, _SERVER, "overloaded"),
    ErrorCode.UNAUTHENTICATED: _Row(401, _INVALID, "invalid_api_key"),
    ErrorCode.PERMISSION_DENIED: _Row(403, "permission_error", "model_not_allowed"),
    ErrorCode.RESOURCE_EXHAUSTED: _Row(429, "requests", "rate_limit_exceeded"),
    ErrorCode.DEADLINE_EXCEEDED: _Row(504, _SERVER, "timeout"),
}


def describe(error: Failure | InferError) -> tuple[_Row, str | None]:
    """Return status, type and code of an error, and its field."""
    row = _ROWS.get(error.code) or _Row(http_status(error), _SERVER, None)
    if isinstance(error, OpenAIError):
        return row._replace(status=error.status or row.status, slug=error.slug or row.slug), error.param
    if error.code is ErrorCode.INVALID_ARG and _CONTEXT.search(error.message):
        return row._replace(slug="context_length_exceeded"), None
    return row, None


def error_object(error: Failure | InferError) -> dict[str, Any]:
    """Return the member `error`."""
    row, param = describe(error)
    return {"message": error.message, "type": row.kind, "param": param, "code": row.slug}


def answer(error: Failure | InferError) -> Answer:
    """Return an error as it is answered."""
    row, _ = describe(error)
    headers = dict(http_headers(error))
    if row.status == 503 and "Retry-After" not in headers:
        headers["Retry-After"] = "1"
    # OpenAI's clients repeat each 500 twice: a failing generation would cost three.
    if row.status == 500:
        headers["x-should-retry"] = "false"
    return Answer(row.status, headers, to_json({"error": error_object(error), "detail": error.message}))


def answer_of_status(status: int, message: str) -> Answer:
    """Return an error of which only status and text are known, in OpenAI's form."""
    code = next((code for code, row in STATUSES.items() if row.http == status), ErrorCode.INVALID_ARG)
    return answer(OpenAIError(message or f"status {status}", code=code, status=status))


def unknown_url(method: str, path: str) -> OpenAIError:
    """Return the error of a path that is none."""
    return OpenAIError(f"Unknown request URL: {method} {path}", code=ErrorCode.NOT_FOUND, slug="unknown_url")


def not_kept() -> OpenAIError:
    """Return the error of a response that is asked for again."""
    text = "responses are not kept here: send the whole conversation as 'input'"
    return OpenAIError(text, code=ErrorCode.NOT_FOUND, slug="response_not_found")


def wrong_method(method: str, path: str) -> OpenAIError:
    """Return the error of a path that has other methods."""
    return OpenAIError(f"Not allowed to {method} on {path}", slug="method_not_supported", status=405)


def restricted(header: str) -> Answer:
    """Return the answer to a request without the header that `--openai-restricted-api` asks for."""
    text = f"This API is restricted, expecting header '{header}' with valid value"
    fields = {"message": text, "type": "authentication_error", "param": None, "code": "invalid_auth"}
    return Answer(401, {"WWW-Authenticate": "Bearer"}, to_json({"error": fields, "detail": text}))
