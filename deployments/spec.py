"""The spec of a model version, which the manager gives to its replicas, and their description of the load."""

import logging
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from app.core.chat_templates import TextFacts
from app.core.errors import InferError, text_of
from app.core.identifiers import identifier
from app.core.installed.installation import PROGRAM
from app.core.observability.log import LogConfig
from app.transport.settings import TransportSettings

logger = logging.getLogger(__name__)

MANAGER: Final = "repository-manager"
"""The deployment of the repository manager, from which replicas fetch the files of a load request."""

UPDATE: Final = "update"
"""The control verb by which the manager changes a replica's instances; its argument is `ModelSpec.config`."""

LOAD: Final = "load"
"""The control verb by which the manager reads the `ReplicaLoad` of a replica of a scaled model."""


class Limits(msgspec.Struct, frozen=True):
    """Bounds of a model's queue; the names are those of the server's settings, as in all sections.

    Attributes:
        max_queue_s: the longest expected wait; 0 for no limit.
        learn_max_queue: whether to learn from clients that leave how long they wait.
    """

    max_pending_requests: int = 65536
    max_pending_bytes: int = 4 << 30
    max_queue_s: float = 0.0
    learn_max_queue: bool = True


class Backends(msgspec.Struct, frozen=True):
    """Settings of the execution of models.

    Attributes:
        directory: the directory of further backends; "" for none.
        config: `--backend-config` settings by backend, those for all backends under "".
        max_execution_s: the time limit of executions, unless the model has one; 0 for none.
    """

    directory: str = ""
    config: dict[str, dict[str, str]] = {}
    max_execution_s: float = 0.0

    @property
    def path(self) -> Path | None:
        """`directory` as a path; None for none."""
        return Path(self.directory) if self.directory else None

    def settings(self, *backends: str) -> dict[str, str]:
        """Merge the settings of all backends and of these; earlier ones come first."""
        names = ("", *reversed(backends))
        return {key: value for name in names for key, value in self.config.get(name, {}).items()}


class Metrics(msgspec.Struct, frozen=True):
    """Settings of the durations that are kept."""

    summaries: bool = False
    histograms: bool = False


class Placement(msgspec.Struct, frozen=True):
    """The place of replicas, and what instances get of a node.

    Attributes:
        channel_address: the address to listen on, or "node".
        socket_directory: the directory of unix sockets, private to this user.
        host_policies: the settings of host policies by name.
        rate_limits: explicit counts of resources, see `app/core/config/rate_limit.py`; None without limits.
    """

    channel_address: str = "127.0.0.1"
    socket_directory: str = ""
    host_policies: dict[str, dict[str, str]] = {}
    rate_limits: dict[int, dict[str, int]] | None = None


class ReplicaSettings(msgspec.Struct, frozen=True):
    """The server's settings that a replica needs, in sections.

    Attributes:
        transport: the limits of channels.
        auto_complete: whether the backend completes the configuration.
        cache_bytes: the size limit of local copies of remote models, and of Python environments.
    """

    limits: Limits = Limits()
    backends: Backends = Backends()
    metrics: Metrics = Metrics()
    placement: Placement = Placement()
    transport: TransportSettings = TransportSettings()
    auto_complete: bool = True
    cache_bytes: int = 1 << 40


class ModelSpec(msgspec.Struct, frozen=True):
    """Everything a replica needs; a constructor argument of its deployment.

    Attributes:
        name: the model's name.
        version: the version to serve.
        directory: the model's directory. It holds the files of `bundle` on the manager's node only, and
            stand-ins of the files for a model with an `origin`.
        config: the serialised ModelConfig, normalised but not yet completed from the model file.
        application: the Serve application of this load.
        fingerprint: a digest of the version's files.
        key: the cluster's channel secret.
        server: the sections of the server's settings.
        cache_config: `--cache-config` settings by cache.
        gpus: the CUDA ordinals of the cluster's nodes.
        bundle: the digest of the files of a load request; "" without them.
        manager: the application of the manager.
        origin: the address of the model in a remote repository; "" for a local one.
        cache_directory: the directory of local copies of a remote model.
        override: the configuration of that request as JSON, if it gave no files; replicas do not read it.
        override_files: a digest of the model's files then; the override is kept until one of them is written.
        namespace: the model's namespace, with `--model-namespacing`.
        log: the log settings, until an ingress sends others.
        revision: the number of changes of the instances since the load.
        replicas: those of a scaled model that served when this was deployed; 0 for none.
        percent: of the model's requests that it was to get when this was deployed; 100 without a rollout.
        loaded_at: when the load began, in seconds since the epoch.
    """

    name: str
    version: int
    directory: str
    config: bytes
    application: str
    fingerprint: str
    key: bytes
    server: ReplicaSettings = ReplicaSettings()
    cache_config: dict[str, dict[str, str]] = {}
    gpus: tuple[int, ...] = ()
    bundle: str = ""
    manager: str = PROGRAM
    origin: str = ""
    cache_directory: str = ""
    override: str = ""
    override_files: str = ""
    namespace: str = ""
    log: LogConfig = LogConfig()
    revision: int = 0
    replicas: int = 0
    percent: float = 100.0
    loaded_at: float = 0.0

    @property
    def overridden(self) -> bool:
        """Whether a load request gave configuration or files."""
        return bool(self.override or self.bundle)

    @property
    def model_folders(self) -> tuple[Path, Path]:
        """The version's directory and the model's."""
        return Path(self.directory) / str(self.version), Path(self.directory)

    @property
    def identifier(self) -> str:
        """The model's identifier in the server."""
        return identifier(self.namespace, self.name)


class GpuMemory(NamedTuple):
    """Bytes that a replica's processes have on a GPU, and bytes that are free there."""

    used: int
    free: int


class ReplicaLoad(msgspec.Struct, frozen=True):
    """The load of a replica. All but the gauges grow from the load of the model on.

    Attributes:
        at_ns: the time, on a clock of the replica's own.
        executing_ns: the time integral of the number of executing requests; its growth, divided by that of
            `at_ns`, is how many executed on average.
        waiting_ns: the same of queued requests.
        arrived: requests that were accepted or refused.
        executed: requests that were executed; `rows` are their batch items.
        waits: successful requests by the time they were queued: `n` stands for less than 2**n ns.
        in_flight: requests without their final response (a gauge, as all that follow).
        oldest_ns: how long the oldest queued request has waited.
        places: requests, of a model that batches rows, that all instances execute at a time.
        batches: whether `places` are rows.
        sequences: sequences that have not ended.
        node: the id of the node.
        memory_bytes: the memory of the replica and its processes; 0 where it is not known.
        free_bytes: the memory of the node that new processes may use.
        gpus: by number of each GPU of the node that it uses; empty where the driver does not tell.
    """

    at_ns: int
    executing_ns: int
    waiting_ns: int
    arrived: int
    executed: int
    rows: int
    waits: dict[int, int]
    in_flight: int
    oldest_ns: int
    places: int
    batches: bool
    sequences: int
    node: str
    memory_bytes: int = 0
    free_bytes: int = 0
    gpus: dict[int, GpuMemory] = {}


class Description(msgspec.Struct, frozen=True):
    """The report of a replica after its load.

    Attributes:
        spec: the spec that was loaded.
        config: the complete configuration, serialised.
        labels: class labels by output.
        load_seconds: the duration of the load.
        error: why the load failed, encodable; "" for a success.
        makes_calls: whether the model may call other models and ensembles.
        text: what ingresses know of a text model.
    """

    spec: ModelSpec
    config: bytes = b""
    labels: dict[str, tuple[str, ...]] = {}
    load_seconds: float = 0.0
    error: str = ""
    makes_calls: bool = False
    text: TextFacts = TextFacts()

    @classmethod
    def of_failure(cls, spec: ModelSpec, error: Exception) -> "Description":
        """Return the report of a load that has failed; log what nobody foresaw."""
        if isinstance(error, InferError):
            return cls(spec, error=error.with_code())
        logger.error("loading model '%s' version %s", spec.name, spec.version, exc_info=error)
        return cls(spec, error=f"Internal: {type(error).__name__}: {text_of(error)}")
