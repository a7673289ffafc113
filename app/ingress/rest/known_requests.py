"""Inference requests in one piece, of a head like one before: the compiled reader reads them in full.

`HttpRequests` reads them, and writes their responses. Here is what it learns of heads that Python has read,
and the way of `infer.py` for the responses that it does not write.
"""

from typing import TYPE_CHECKING

from app.core.errors import InferError
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.ingress.http1.body import RoutedHead
from app.ingress.http1.exchange import Exchange
from app.ingress.rest.infer import ENDPOINT, InferRoute, ResponseWriter
from app.native.choice import is_native
from app.native.learning import not_learned
from app.protocol.http.compiled import JSON_TYPES, RESPONSE_HEADS, data_encoder
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import HttpInfer
from app.settings.fronts import HttpSettings

if TYPE_CHECKING:
    from app.native.extension import HttpRequests, Matched


class KnownRequests:
    """The heads of requests to one front."""

    def __init__(self, requests: "HttpRequests") -> None:
        self._requests = requests
        self.match = requests.match

    def learn(self, routed: RoutedHead, data: bytes, head_size: int) -> None:
        """Have requests with a head like this one, which was read, be read by the compiled reader."""
        head, route = routed
        if type(route) is not InferRoute:
            return
        with not_learned():
            if route.is_plain(head):
                self._requests.add(data[:head_size], _Known(route, head), route.model, route.version)


class _Known:
    """Submits and answers the requests with one head, but for headers that change nothing about them."""

    def __init__(self, route: InferRoute, head: RequestHead) -> None:
        self._route = route
        self.head = head

    def start(self, matched: "Matched") -> bool:
        """Submit a request; return False if Python has to read it.

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

    def deliver(self, matched: "Matched", response: InferResponse) -> None:
        """Deliver a response that the compiled reader does not write."""
        exchange = Exchange(matched.connection, self.head)
        matched.connection.go_on(exchange)
        infer = HttpInfer(matched.request, matched.binary_default, matched.needs_json_encoding)
        writer = ResponseWriter(self._route, exchange, matched.entry, infer)
        writer.call, matched.call = matched.call, None
        exchange.on_disconnect = writer.cancel
        matched.sink = writer.deliver
        writer.deliver(response)


def known_requests(data_plane: str, settings: HttpSettings) -> KnownRequests | None:
    """Return the reader of a front in a process with this setting; None where Python reads all."""
    if not is_native(data_plane):
        return None
    from app.native.extension import HttpRequests

    asked = tuple(sorted({each.header.lower().encode() for each in settings.restrictions.values()}))
    types = Tensor, RequestedOutput, InferRequest, InferResponse
    limits = settings.max_input_size, settings.http1.max_head_bytes, settings.http1.max_body_bytes
    encode = data_encoder(data_plane)
    return KnownRequests(HttpRequests(*types, JSON_TYPES, asked, RESPONSE_HEADS, encode, *limits))
