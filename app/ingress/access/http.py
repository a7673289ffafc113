"""Guarded routes of an HTTP server."""

from app.access.grants import Grant
from app.core.errors import Failure
from app.ingress.access.caller import context_of
from app.ingress.access.guard import Ask, Guard
from app.ingress.http1.exchange import Exchange, FixedRoute, Route
from app.protocol.http.http1 import RequestHead


def guarded_route(guard: Guard | None, ask: Ask, head: RequestHead, route: Route) -> Route:
    """Return a route that asks who the client is, where there is anything to decide."""
    return GuardedRoute(guard, ask, head, route) if guard is not None and guard.concerns(ask) else route


class GuardedRoute:
    """Answers clients that may ask, and refuses others.

    Args:
        guard: decides.
        ask: what requests with this head ask for.
        head: of the requests.
        route: answers clients that may.
    """

    def __init__(self, guard: Guard, ask: Ask, head: RequestHead, route: Route) -> None:
        self._guard = guard
        self._ask = ask
        self._route = route
        self._authorization = head.get(b"authorization") or ""
        self._number = -1  # of the set of tokens by which it was decided
        self._grant: Grant | None = None
        self._refusal: Failure | None = None
        self._context = context_of(None)

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer a request, or refuse it."""
        guard, ask = self._guard, self._ask
        grants = guard.grants
        if grants is not None and grants.number != self._number:
            self._grant, self._refusal = guard.admit(self._authorization, ask)
            self._number = grants.number
            self._context = context_of(self._grant)
        if ask.need == "inference" and self._refusal is None:  # counted and limited as it is submitted
            self._context.run(self._route.start, exchange, body)
        else:
            self._start_other(exchange, body)

    def _start_other(self, exchange: Exchange, body: memoryview) -> None:
        guard, ask, grant = self._guard, self._ask, self._grant
        record = guard.record(ask, grant, "http", exchange.peer)
        if self._refusal is not None:
            guard.refused(ask, grant, self._refusal, record)
            exchange.fail(self._refusal)
            return
        if record is not None and isinstance(self._route, FixedRoute):  # a refusal for another reason
            record(subject=ask.model or ask.region, outcome="denied", reason=str(self._route.status))
        if grant is not None:
            grant.outcomes.ok += 1
        context_of(grant, record).run(self._route.start, exchange, body)
