"""The way of calls by Serve handles to a model's process: a channel that the first of them opens."""

import asyncio
from collections.abc import Callable

import msgspec

from app.core.errors import unavailable
from app.core.inference import InFlight, Sink
from app.core.tensors import InferRequest
from app.transport.channel.client import Channel
from deployments.spec import ModelSpec


class HandleChannel:
    """Sends requests to a process. On the data-plane loop.

    A process whose only client is an ingress answers faster, so that this one connects only when it has to.
    """

    def __init__(self, spec: ModelSpec, path: str) -> None:
        """`path` is that of the process's socket."""
        self._spec = spec
        self._address = f"unix:{path}"
        self._opening: asyncio.Task[Channel] | None = None

    def send(self, request: InferRequest, sink: Sink) -> Callable[[], None]:
        """Send a request as soon as there is a channel; return the function that cancels it.

        Raises:
            InferError: what `Channel.send` raises.
        """
        opening = self._opening
        if opening is not None and opening.done() and not opening.exception():
            channel = opening.result()
            if not channel.closing:
                return channel.send(request, sink).cancel
            opening = None
        if opening is None or opening.done():
            opening = self._opening = asyncio.get_running_loop().create_task(self._open())
        call = _Waiting(request, sink)
        opening.add_done_callback(call.send)
        return call.cancel

    def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.add_done_callback(_close_opened)

    async def _open(self) -> Channel:
        settings = msgspec.structs.replace(self._spec.server.transport, arena_bytes=0)
        return await Channel.connect(self._address, self._spec.key, settings)


def _close_opened(opening: "asyncio.Task[Channel]") -> None:
    if not opening.cancelled() and not opening.exception():
        opening.result().close()


class _Waiting(InFlight):
    """A request that waits for the channel."""

    def send(self, opening: "asyncio.Task[Channel]") -> None:
        """Send it, or fail it with the reason why there is no channel."""
        try:
            call = opening.result().send(self.request, self.sink)
        except (OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            name = self.request.model_name
            self.fail(unavailable(f"model '{name}': its process cannot be reached: {reason}"))
        except Exception as error:
            self.fail(error)
        else:
            self.sent(call)
