"""The one service under the HTTP and the gRPC front.

It knows neither front nor wire format: requests and responses are those of `app.core.tensors`, descriptions
are the protocol's message classes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tritonclient.grpc import service_pb2 as pb

from app.access.tokens import ANONYMOUS
from app.core.drift.status import DriftStatus
from app.core.errors import ErrorCode, InferError, invalid_arg
from app.core.feedback.figures import FeedbackFigures
from app.core.feedback.records import Feedback
from app.core.inference import Call, Sink
from app.core.observability.statistics import ReplicaReport
from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.core.tensors import InferRequest
from app.ingress.client_memory.registry import SharedMemory
from app.ingress.service.overview import Overview
from app.routing.table import VersionEntry

if TYPE_CHECKING:
    from app.core.cost.report import Report
    from app.tape.browsing import TapeBrowser

Counted = tuple[VersionEntry, ReplicaReport]
"""A version, and all its counters over its replicas."""


class InferenceService(Protocol):
    """The service as a front calls it. All methods run on the ingress's event loop.

    `version` is the version string of the path or message; "" lets the version policy choose.
    Every method may raise `InferError` with Triton's text and code.
    """

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        """Choose the version that answers a request, once, for decoding, `submit` and encoding.

        Raises:
            InferError: see `RoutingTable.resolve`.
        """

    async def wait_loaded(self, entry: VersionEntry) -> None:
        """Wait until an idle version, of a `NotLoaded` error, is loaded; raise `InferError` if it is not."""

    def served(self) -> list[VersionEntry]:
        """Return the READY versions, by name and version."""

    def resolve_single(self, name: str, version: str, endpoint: str) -> VersionEntry:
        """`resolve` for an endpoint that sends one response to a request; the error text names it.

        Raises:
            InferError: see `RoutingTable.resolve`; UNSUPPORTED for a decoupled model.
        """

    def live(self) -> bool: ...

    def ready(self) -> bool: ...

    def exiting(self) -> bool:
        """Return whether the server drains: fronts report not ready and accept no new connection."""

    def model_ready(self, name: str, version: str = "") -> bool:
        """Return whether a model could be called; raise NOT_FOUND for an unknown model or version."""

    def server_metadata(self) -> pb.ServerMetadataResponse: ...

    def model_metadata(self, name: str, version: str = "") -> pb.ModelMetadataResponse: ...

    async def statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse: ...

    async def counters(self, name: str, version: str = "") -> list[Counted]:
        """Return all counters of the ready versions of a model, or of one; raises as `statistics`."""

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse: ...

    async def overview(self, cursor: str) -> Overview:
        """Return what has changed of versions and their counters since an earlier answer, "" for none."""

    async def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], who: str = ""
    ) -> None:
        """Load or reload in the name of `who`.

        `config` is a JSON ModelConfig; `files` maps `<version>/<file>` to content.
        """

    async def unload_model(self, name: str, unload_dependents: bool = False, who: str = "") -> None: ...

    async def register_model(self, name: str, directory: str, who: str = "") -> None:
        """Load a model from a directory outside the repositories, under a name of its own.

        Without a configuration of its own in it, the directory has models: the ensemble among them, or the
        only one. Raises ALREADY_EXISTS for a name that is registered.
        """

    async def registered_models(self) -> dict[str, str]:
        """Return the directories of models that were registered and are served, by name."""

    async def rollout(self, name: str) -> RolloutStatus:
        """Return the rollout of a model that is on, or its last one; raise NOT_FOUND if it has had none."""

    async def change_rollout(self, name: str, change: RolloutChange, who: str = ANONYMOUS) -> RolloutStatus:
        """Change or start a rollout in the name of `who`; return when every ingress routes by the change."""

    async def drift(self, name: str, version: str = "") -> DriftStatus:
        """Return the drift of a version, by default the newest; raise NOT_FOUND if it is not watched."""

    async def rollout_history(self, name: str) -> RolloutHistory:
        """Return what a model has served; raise NOT_FOUND if that is nothing."""

    async def feedback(self, name: str, version: str, records: Sequence[Feedback]) -> None:
        """Keep feedback on answers of a model, with `version` only on that version's; return when it is.

        Raises UNSUPPORTED without a tape, NOT_FOUND for an unknown model, UNAVAILABLE if it cannot be kept.
        """

    async def feedback_figures(self, name: str) -> FeedbackFigures:
        """Return what feedback says of a model; raises as `feedback` does."""

    async def cost(
        self, since: float, by: Sequence[str], permits: Callable[[str], bool] | None = None
    ) -> "Report":
        """Return what was consumed since a moment, see `bill`; raise as it does."""

    def tape(self) -> "TapeBrowser":
        """Return what reads the requests that this node has recorded; raise UNSUPPORTED without a tape."""

    @property
    def shared_memory(self) -> SharedMemory:
        """Memory regions that clients have registered."""

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Start an inference by the version that was resolved for it; return at once.

        The sink is called on the event loop, never before this method has returned: once for an ordinary
        model, any number of times for a decoupled one, the last call with `final=True`. A version that was
        unloaded meanwhile raises from here; other failures arrive as a final response with `error`.
        Tensor data in a response may be shared memory: it stays valid while a reference to it lives.
        """


def is_ready(service: InferenceService, name: str, version: str = "") -> bool:
    """Return whether a model could be called; an unknown model or version could not.

    Raises:
        InferError: INVALID_ARG for a version that is no number.
    """
    try:
        return service.model_ready(name, version)
    except InferError as error:
        if error.code is ErrorCode.NOT_FOUND:
            return False
        raise


def require_traceable(service: InferenceService, model: str) -> None:
    """Check that a model may have trace settings; "" stands for the whole server.

    Raises:
        InferError: INVALID_ARG for a model that is unknown or not ready.
    """
    if model and not is_ready(service, model):
        raise invalid_arg(f"Request for unknown model : {model}")
