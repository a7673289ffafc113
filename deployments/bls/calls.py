"""A call of a Python model to another model. Everything here runs on the data-plane loop."""

from collections.abc import Sequence
from time import monotonic_ns

from msgspec.structs import replace

from app.core.inference import Call, InFlight, Sink
from app.core.observability.traced import OpenCall
from app.core.tensors import InferRequest, InferResponse, RolloutHint
from backends.base import Request
from deployments.execution.request_activity import RequestActivity


class BlsCall(InFlight):
    """A call made during an execution of `callers`, one batch: it may be for any of them."""

    __slots__ = ("_callers", "_sent_ns", "_trace")

    def __init__(self, request: InferRequest, sink: Sink, callers: Sequence[Request]) -> None:
        super().__init__(request, sink)
        self._callers = callers
        self._sent_ns = monotonic_ns() if request.trace else 0
        self._trace: OpenCall | None = None

    @property
    def unwanted(self) -> bool:
        """Whether every request it may be for was cancelled, and its responses are wanted no more."""
        return bool(self._callers) and not any([_is_wanted(caller) for caller in self._callers])

    def split_request(self) -> InferRequest:
        """Return the request to a model in a rollout: calls for the same caller get the same version."""
        if not self._callers:
            return self.request
        first = self._callers[0]
        if first.activity is None:
            first.activity = RequestActivity()
        return replace(self.request, rollout=RolloutHint(key=first.infer.id or first.activity.name))

    def sent(self, call: Call) -> None:
        """Add the call to the activity of its callers, and to the trace of the first that is traced."""
        super().sent(call)
        for caller in self._callers:
            if caller.activity is None:
                caller.activity = RequestActivity()
            caller.activity.in_flight.add(self)
            if self._sent_ns and caller.infer.trace and self._trace is None:
                self._trace = caller.activity.traced.begin(self.request, self._sent_ns)

    def cancel_unwanted(self) -> None:
        """Cancel the call if no request waits for it any more."""
        if self.call is not None and self.unwanted:
            self.call.cancel()

    def deliver(self, response: InferResponse) -> None:
        """Pass on a response; with the final one, the call ends in the trace and in its callers' activity."""
        if self._trace is not None:
            self._trace.record(response)
        if response.final:
            for caller in self._callers:
                if caller.activity is not None:
                    caller.activity.in_flight.discard(self)
        super().deliver(response)


def _is_wanted(caller: Request) -> bool:
    return not caller.is_cancelled() or (caller.activity is not None and caller.activity.advised)
