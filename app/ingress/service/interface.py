"""The one service under the HTTP and the gRPC front.

Neither front is known here, nor any wire format: requests and responses are those of `app.core.tensors`,
descriptions are the protocol's message classes.
"""

from collections.abc import Mapping
from typing import Protocol

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.core.inference import Call, Sink
from app.core.tensors import InferRequest, InferResponse
from app.ingress.client_memory.registry import SharedMemory


class InferenceService(Protocol):
    """What a front may ask. All methods run on the ingress's event loop.

    `version` is the version string of the path or message; "" lets the version policy choose.
    Every method may raise `InferError` with Triton's text and code.
    """

    def live(self) -> bool: ...

    def ready(self) -> bool: ...

    def exiting(self) -> bool:
        """Whether the server is draining: fronts answer health with 503 and take no new connection."""

    def model_ready(self, name: str, version: str = "") -> bool:
        """Raises NOT_FOUND for an unknown model or version."""

    def server_metadata(self) -> pb.ServerMetadataResponse: ...

    def model_metadata(self, name: str, version: str = "") -> pb.ModelMetadataResponse: ...

    def model_config(self, name: str, version: str = "") -> mc.ModelConfig: ...

    def labels(self, name: str, version: str, output: str) -> tuple[str, ...]:
        """Classification labels of an output; empty without a label file."""

    async def statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse: ...

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse: ...

    async def load_model(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload. `config` is a JSON ModelConfig; `files` maps `<version>/<file>` to content."""

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None: ...

    @property
    def shared_memory(self) -> SharedMemory:
        """The memory that clients share."""

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """Start an inference; returns at once.

        The sink is called on the event loop, never before this method has returned: once for an ordinary
        model, any number of times for a decoupled one, the last call with `final=True`. An unknown model or
        version raises from here; every other failure arrives as a final response with `error`.
        Tensor data in a response may be shared memory: it stays valid while a reference to it lives.
        """

    async def infer(self, request: InferRequest) -> InferResponse:
        """`submit` for a caller that wants exactly one response.

        Raises:
            InferError: the response's error; UNSUPPORTED for a decoupled model.
        """
