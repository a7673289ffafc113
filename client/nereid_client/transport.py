"""What a protocol does for the client. A call has a deadline in seconds; it is not repeated here."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nereid_client.messages import Request, Response
from nereid_client.retry import Contact


@dataclass(frozen=True)
class Tls:
    """Files of a connection by TLS, in PEM; without `ca`, the system's authorities."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return them as Python's own TLS wants them."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


class Transport(Protocol):
    """A connection to a server, or several.

    Attributes:
        closing: closes the connections, and does not refer to the transport.
        contact: whether the server was ever there.

    Raises, from each call:
        ServerError: the answer is an error; Unavailable and DeadlineExceeded are kinds of it.
    """

    @property
    def closing(self) -> Callable[[], Coroutine[Any, Any, None]]: ...

    @property
    def contact(self) -> Contact: ...

    async def close(self) -> None:
        """Close the connections."""

    async def live(self, timeout: float) -> bool:
        """Return whether the server runs."""

    async def ready(self, model: str, version: str, timeout: float) -> bool:
        """Return whether a model, or with "" the server, is ready."""

    async def describe(self, timeout: float) -> Mapping[str, Any]:
        """Return the metadata of the server."""

    async def describe_model(
        self, model: str, version: str, timeout: float
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return a model's metadata and configuration as the JSON of the protocol."""

    async def statistics(self, model: str, version: str, timeout: float) -> Sequence[Mapping[str, Any]]:
        """Return the statistics of a model's versions as the JSON of the protocol."""

    async def index(self, timeout: float) -> Sequence[Mapping[str, Any]]:
        """Return the models of the server's repositories, with those fields that the server sends."""

    async def load(self, model: str, config: str, files: Mapping[str, bytes], timeout: float) -> None:
        """Load a model, with a configuration in JSON and files of its own if they are given."""

    async def unload(self, model: str, timeout: float) -> None:
        """Unload a model."""

    async def feedback(
        self, model: str, version: str, records: Sequence[Mapping[str, Any]], timeout: float
    ) -> int:
        """Give feedback on answers of a model; return how many records the server has kept."""

    async def feedback_figures(self, model: str, timeout: float) -> Mapping[str, Any]:
        """Return what feedback says of a model."""

    def encoded(self, request: Request) -> Any:
        """Return what `infer` sends of a request: built once, however often it is sent."""

    async def infer(self, encoded: Any, timeout: float) -> Response:
        """Return the answer."""

    def stream(self, request: Request, timeout: float) -> AsyncIterator[Response]:
        """Yield the responses of a request to a decoupled model."""

    async def register(self, region: str, key: str, size: int, timeout: float) -> None:
        """Make a region of system shared memory known to the server."""

    async def unregister(self, region: str, timeout: float) -> None:
        """Make the server forget a region."""

    async def register_cuda(self, region: str, handle: bytes, device: int, size: int, timeout: float) -> None:
        """Make a region of a GPU's memory known to the server, by its CUDA IPC handle."""

    async def unregister_cuda(self, region: str, timeout: float) -> None:
        """Make the server forget such a region."""
