"""What a replica is told about the model version it is to serve."""

import msgspec


class ModelSpec(msgspec.Struct, frozen=True):
    """Everything a replica needs; travels as a constructor argument of its deployment.

    `config` is the serialised ModelConfig, normalised but not yet completed from the model file.
    `gpus` are the CUDA ordinals a node of the cluster has. `fingerprint` identifies the files on disk that
    were loaded. `key` is the cluster's channel secret. `manager` is the application and deployment name of
    the repository manager, which a model that calls others follows.
    """

    name: str
    version: int
    directory: str
    config: bytes
    application: str
    fingerprint: str
    key: bytes
    socket_directory: str
    auto_complete: bool = True
    backend_directory: str = ""
    backend_config: dict[str, dict[str, str]] = {}
    gpus: tuple[int, ...] = ()
    channel_address: str = "127.0.0.1"
    max_pending_requests: int = 65536
    max_pending_bytes: int = 4 << 30
    arena_bytes: int = 256 << 20
    manager: tuple[str, str] = ("nereid", "repository-manager")


class Description(msgspec.Struct, frozen=True):
    """What a replica reports after its load: the complete configuration, or why the load failed."""

    spec: ModelSpec
    config: bytes = b""
    labels: dict[str, tuple[str, ...]] = {}
    load_seconds: float = 0.0
    error: str = ""
