"""What a request that was cancelled is answered with."""

from typing import Final

import msgspec

from app.core.failures import CANCELLED
from app.core.inference import Sink
from app.core.tensors import InferResponse, failed

AWAITED_S: Final = 5.0
"""For the response to a traced request, which says when the model had it."""


def cancelled_sink(sink: Sink) -> Sink:
    """Return a sink of what a traced request is answered with after it was cancelled: only times are kept."""

    def deliver(response: InferResponse) -> None:
        if response.final:
            kept = {"timestamps": response.timestamps, "calls": response.calls}
            sink(msgspec.structs.replace(failed(CANCELLED, response.id), **kept))

    return deliver
