"""The compiled way of plain requests through a replica (`app/native/plain_requests.c`)."""

from typing import TYPE_CHECKING, Any

from tritonclient.grpc import model_config_pb2 as mc

from app.transport.settings import TransportSettings
from app.transport.wire.compiled import compiled_messages, plain_check
from deployments.execution.queued_request import QueuedRequest

if TYPE_CHECKING:
    from app.native.extension import Messages, PlainRequests


def compiled_requests(settings: TransportSettings, config: mc.ModelConfig, version: str) -> "Make | None":
    """Return what makes the compiled way of a model's requests; None where Python does all."""
    messages = compiled_messages(settings)
    return None if messages is None else Make(messages, config, version)


class Make:
    """Makes the compiled way of a model's requests from what its replica has.

    Attributes:
        plain_rows: see `RequestChecker`.
    """

    def __init__(self, messages: "Messages", config: mc.ModelConfig, version: str) -> None:
        self._messages = messages
        self._check = plain_check(messages, config)
        self.plain_rows = self._check.rows
        self._model = config.name, version

    def __call__(self, **parts: Any) -> "PlainRequests":
        """Return it; `parts` are those of `PlainRequests` that are not known here."""
        from app.native.extension import PlainRequests

        return PlainRequests(self._messages, self._check, QueuedRequest, *self._model, **parts)
