"""What a replica is told about the model version it is to serve."""

from pathlib import Path
from typing import Final

import msgspec

from app.core.identifiers import identifier
from app.core.observability.log import LogConfig

MANAGER: Final = "repository-manager"
"""The deployment of the repository manager, whom replicas ask for the files of a load request."""

UPDATE: Final = "update"
"""The control verb by which the manager changes a replica's instances; its argument is `ModelSpec.config`."""


class ModelSpec(msgspec.Struct, frozen=True):
    """Everything a replica needs; travels as a constructor argument of its deployment.

    `config` is the serialised ModelConfig, normalised but not yet completed from the model file.
    `gpus` are the CUDA ordinals a node of the cluster has. `fingerprint` identifies the files on disk that
    were loaded. `key` is the cluster's channel secret. `manager` is the application of the manager, whom a
    replica asks for files and for other models. `bundle` identifies the files of a load request, which
    `directory` holds on the manager's node. `origin` is the address of a model in a remote repository; then
    `directory` lists it and a node's copy is below `cache_directory`. `overridden` tells that a load request
    brought configuration or files. `summaries` and `histograms` say which distributions of durations the
    replica keeps. `namespace` is that of the model, with `--model-namespacing`. `log` is
    how the replica logs, until an ingress tells it otherwise. `rate_limits` are the explicit counts of
    resources (`app/core/config/rate_limit.py`), None without a rate limiter. `host_policy` are the
    settings of host policies by name. `revision` counts the changes of instances since the load.
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
    cache_config: dict[str, dict[str, str]] = {}
    gpus: tuple[int, ...] = ()
    channel_address: str = "127.0.0.1"
    max_pending_requests: int = 65536
    max_pending_bytes: int = 4 << 30
    arena_bytes: int = 256 << 20
    summaries: bool = False
    histograms: bool = False
    bundle: str = ""
    manager: str = "nereid"
    origin: str = ""
    cache_directory: str = ""
    cache_bytes: int = 1 << 40
    overridden: bool = False
    namespace: str = ""
    log: LogConfig = LogConfig()

    @property
    def backend_path(self) -> Path | None:
        """`backend_directory`, where backends of its own lie; None for none."""
        return Path(self.backend_directory) if self.backend_directory else None

    def settings(self, *backends: str) -> dict[str, str]:
        """`--backend-config` settings of these backends, the first of which has the last word, and of all."""
        names = ("", *reversed(backends))
        return {key: value for name in names for key, value in self.backend_config.get(name, {}).items()}

    @property
    def identifier(self) -> str:
        """What the model is known by in the server."""
        return identifier(self.namespace, self.name)

    rate_limits: dict[int, dict[str, int]] | None = None
    host_policy: dict[str, dict[str, str]] = {}
    revision: int = 0


class Description(msgspec.Struct, frozen=True):
    """What a replica reports after its load: the complete configuration, or why the load failed.

    `makes_calls` tells that the model may call other models, ensembles among them, from its replicas.
    """

    spec: ModelSpec
    config: bytes = b""
    labels: dict[str, tuple[str, ...]] = {}
    load_seconds: float = 0.0
    error: str = ""
    makes_calls: bool = False
