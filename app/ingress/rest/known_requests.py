"""Inference requests that look like one that was read before: submitted and answered without reading them.

The compiled `Patterns` recognises them, and writes their responses. Here is what it learns from requests and
responses that went the way of `infer.py`, and that way for the responses that it does not know.
"""

from typing import TYPE_CHECKING, Final

from app.core.errors import InferError
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.ingress.http1.body import RoutedHead
from app.ingress.http1.exchange import Exchange
from app.ingress.rest.infer import ENDPOINT, InferRoute, ResponseWriter
from app.native.choice import is_native
from app.native.learning import not_learned
from app.protocol.http.http1 import RequestHead
from app.protocol.http.json_tensors import encode_data
from app.protocol.http.request_pattern import ID, RequestPattern, find_pattern
from app.protocol.http.response_pattern import find_answer
from app.protocol.http.v2 import HttpInfer, encode_infer

if TYPE_CHECKING:
    from app.native.extension import Matched, Patterns

_MAX_LEARNED: Final = 8 << 10
"""Bytes of head and JSON of a request that is learned from."""
_MAX_ANSWERS: Final = 32
"""Looks of responses that are learned for one of requests: beyond, they look different each time."""


class KnownRequests:
    """What the requests to one front look like."""

    def __init__(self, patterns: "Patterns", max_input_size: int) -> None:
        self._patterns = patterns
        self._max_input_size = max_input_size
        self.match = patterns.match

    def learn(self, routed: RoutedHead, data: bytes, head_size: int) -> None:
        """Recognise requests that look like this complete one, which was read, from now on."""
        if type(routed.route) is InferRoute and self._patterns.wants(data):
            with not_learned():
                self._learn(routed.route, routed.head, data, head_size)

    def _learn(self, route: InferRoute, head: RequestHead, data: bytes, head_size: int) -> None:
        json_end = route.json_end(head, head_size)
        if not head_size < json_end <= min(head_size + self._max_input_size, _MAX_LEARNED):
            return
        pattern = find_pattern(data[head_size:json_end], self._max_input_size)
        if pattern is None or pattern.binary_size != len(data) - json_end:
            return
        holes = tuple((start + head_size, end + head_size, number) for start, end, number in pattern.holes)
        fields = (route.model, route.version, *pattern.fields)
        self._patterns.add(data, json_end, holes, pattern.inputs, fields, _Known(route, head, pattern))


class _Known:
    """Submits and answers the requests of one look."""

    def __init__(self, route: InferRoute, head: RequestHead, pattern: RequestPattern) -> None:
        self._route = route
        self._head = head
        self._binary_default = pattern.binary_default
        self._needs_json_encoding = pattern.needs_json_encoding
        self._changes_id = any(hole.input == ID for hole in pattern.holes)
        self._learned = 0

    @property
    def head(self) -> RequestHead:
        """Return the head of these requests."""
        return self._head

    def start(self, matched: "Matched") -> bool:
        """Submit a request; return False if it has to be read.

        Raises:
            InferError: it cannot be submitted.
        """
        route = self._route
        context = route.context
        if context.observer.enabled:
            return False
        service = context.service
        try:
            entry = service.resolve_single(route.model, route.version, ENDPOINT)
        except InferError:
            return False
        if entry.split is not None:
            return False
        matched.entry = entry
        matched.call = service.submit(entry, matched.request, matched)
        return True

    def answer(self, matched: "Matched", response: InferResponse) -> None:
        """Answer a request by a response of an unknown look."""
        exchange = Exchange(matched.connection, self._head)
        matched.connection.go_on(exchange)
        infer = HttpInfer(matched.request, self._binary_default, self._needs_json_encoding)
        writer = ResponseWriter(self._route, exchange, matched.entry, infer)
        writer.call, matched.call = matched.call, None
        exchange.on_disconnect = writer.cancel
        matched.sink = writer.on_response
        writer.on_response(response)
        if self._learned < _MAX_ANSWERS:
            self._learned += 1
            with not_learned():
                self._learn(matched, infer, response)

    def _learn(self, matched: "Matched", infer: HttpInfer, response: InferResponse) -> None:
        """Write responses like this one from now on."""
        identifier = infer.request.id
        if not response.final or response.failure is not None or response.parameters:
            return
        if response.id not in ("", identifier):
            return
        try:
            encoded = encode_infer(infer, response, matched.entry)
        except InferError:
            return
        answer = find_answer(response, encoded, identifier if self._changes_id else "")
        if answer is not None:
            matched.add_answer(answer)


def known_requests(data_plane: str, max_input_size: int) -> KnownRequests | None:
    """Return what recognises requests in a process with this setting; None where Python reads all."""
    if not is_native(data_plane):
        return None
    from app.native.extension import Patterns

    return KnownRequests(Patterns(Tensor, InferRequest, InferResponse, encode_data), max_input_size)
