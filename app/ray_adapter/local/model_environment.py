"""The surroundings that the server was started with, which it changes for Ray: models get them back."""

import os
from collections.abc import Mapping
from typing import Final

_UMASK: Final = "RAY_NEREID_UMASK"
_NUMBER: Final = "RAY_NEREID_THREADS"
_THREADS: Final = "OMP_NUM_THREADS"
_RAYS: Final = ("RAY_", "SERVE_", "__RAY", "GRPC_ENABLE_FORK_SUPPORT")
"""How variables begin that Ray 2.60 gives its workers, and that no model expects; and our own two."""


def remember_surroundings() -> None:
    """Note in this process's environment, which Ray's workers inherit, what models are to find."""
    umask = os.umask(0o077)
    os.umask(umask)
    os.environ.setdefault(_UMASK, f"{umask:o}")
    os.environ.setdefault(_NUMBER, os.environ.get(_THREADS, ""))


def model_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return a model's environment: the server's, without what Ray has added to it.

    Args:
        inherited: the environment of a worker of Ray.
    """
    ours = {name: value for name, value in inherited.items() if not name.startswith(_RAYS)}
    ours.pop(_THREADS, None)  # Ray sets it where nobody has
    threads = inherited.get(_NUMBER, "")
    return {**ours, _THREADS: threads} if threads else ours


def model_umask(inherited: Mapping[str, str]) -> int:
    """Return a model's umask; in a cluster that the server has joined, that of Ray's workers."""
    if _UMASK in inherited:
        return int(inherited[_UMASK], 8)
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
