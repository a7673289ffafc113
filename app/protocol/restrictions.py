"""Restricted APIs: categories of routes and RPCs that answer only requests with a certain header.

Categories, option format and texts are those of tritonserver's `--http-restricted-api` and
`--grpc-restricted-protocol`. No I/O.
"""

import re
from collections.abc import Iterable, Mapping
from hmac import compare_digest
from typing import Final, NamedTuple

GRPC_PREFIX: Final = "triton-grpc-protocol-"
"""What tritonserver puts in front of a key to name the gRPC metadata."""

CATEGORIES: Final = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)

_MODEL: Final = "/v2/models/[^/]+(?:/versions/[0-9]+)?"
_SHARED_MEMORY: Final = "/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:status|register|unregister)"
# The first match counts: "stats" in place of a model's name is no model.
_PATHS: Final = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        ("inference", f"{_MODEL}/(?:infer|generate|generate_stream)"),
        ("health", f"/v2/health/(?:live|ready)|{_MODEL}/ready"),
        ("statistics", f"/v2/models/stats|{_MODEL}/stats"),
        ("metadata", f"/v2|{_MODEL}"),
        ("model-config", f"{_MODEL}/config"),
        ("model-repository", "/v2/repository(?:/[^/]+)?/(?:index|models/[^/]+/(?:load|unload))"),
        ("shared-memory", _SHARED_MEMORY),
        ("trace", "/v2(?:/models/[^/]+)?/trace/setting"),
        ("logging", "/v2/logging"),
    )
)
_METHODS: Final[Mapping[str, str]] = {
    "ServerLive": "health",
    "ServerReady": "health",
    "ModelReady": "health",
    "Check": "health",
    "Watch": "health",
    "ServerMetadata": "metadata",
    "ModelMetadata": "metadata",
    "ServerReflectionInfo": "metadata",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "model-config",
    "ModelStatistics": "statistics",
    "RepositoryIndex": "model-repository",
    "RepositoryModelLoad": "model-repository",
    "RepositoryModelUnload": "model-repository",
    "SystemSharedMemoryStatus": "shared-memory",
    "SystemSharedMemoryRegister": "shared-memory",
    "SystemSharedMemoryUnregister": "shared-memory",
    "CudaSharedMemoryStatus": "shared-memory",
    "CudaSharedMemoryRegister": "shared-memory",
    "CudaSharedMemoryUnregister": "shared-memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}


class Restriction(NamedTuple):
    """The header a category asks for; `header` is spelled as the user wrote it."""

    header: str
    value: str

    def met_by(self, sent: bytes | None) -> bool:
        """Whether the header's value is the right one, found in a time that does not depend on how wrong."""
        return sent is not None and compare_digest(sent, self.value.encode())


Restrictions = Mapping[str, Restriction]
"""Category to what it asks for; a category that is not in it is open."""


def parse_restrictions(entries: Iterable[str], option: str, noun: str, prefix: str = "") -> Restrictions:
    """Read `<category>[,<category>...]:<key>=<value>` options.

    Args:
        entries: the options' values.
        option: the option's name without dashes.
        noun: what its texts call a category, "api" or "protocol".
        prefix: goes in front of each key.

    Raises:
        ValueError: another form, an unknown category, or one in two groups; the text is tritonserver's.
    """
    found: dict[str, Restriction] = {}
    for entry in entries:
        names, _, pair = entry.partition(":")
        key, _, value = pair.partition("=")
        if not (names and key and value):
            form = "'<config name>:<setting>=<value>'"
            raise ValueError(f"--{option} option format is {form}. Got {entry}")
        for name in names.split(","):
            if name not in CATEGORIES:
                raise ValueError(f"unknown restricted {noun} '{name}'")
            if name in found:
                raise ValueError(f"restricted {noun} '{name}' can not be specified in multiple config groups")
            found[name] = Restriction(prefix + key, value)
    return found


def category_of_path(path: str) -> str:
    """The category of an HTTP path, "" when it is no path of the API."""
    return next((category for category, pattern in _PATHS if pattern.fullmatch(path)), "")


def category_of_method(name: str) -> str:
    """The category of a gRPC method by its full name, "" when the API has no such method."""
    return _METHODS.get(name.rpartition("/")[2], "")
