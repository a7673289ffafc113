"""Settings of `--backend-config=tensorrt,...` that say how batches are executed."""

import logging
from collections.abc import Mapping
from typing import Final

from backends.parameters import parse_boolean

logger = logging.getLogger(__name__)

_POLICY: Final = "execution-policy"
_COALESCE: Final = "coalesce-request-input"


def launches_in_turn(settings: Mapping[str, str]) -> bool:
    """Return whether the instances of a GPU launch their batches one after the other.

    That is `execution-policy=DEVICE_BLOCKING`, in Triton one thread for the instances of a GPU. With
    `BLOCKING`, the default here, each instance launches when it has a batch.
    """
    policy = settings.get(_POLICY) or "BLOCKING"
    if policy not in ("BLOCKING", "DEVICE_BLOCKING"):
        logger.warning(
            "--backend-config=tensorrt,%s=%s is neither BLOCKING nor DEVICE_BLOCKING, and ignored",
            _POLICY,
            policy,
        )
    return policy == "DEVICE_BLOCKING"


def note_coalescing(settings: Mapping[str, str]) -> None:
    """Log that `coalesce-request-input` changes nothing, if it is set.

    Raises:
        InferError: INVALID_ARG for a value that is no boolean.
    """
    if parse_boolean(_COALESCE, settings.get(_COALESCE) or "false"):
        logger.warning(
            "--backend-config=tensorrt,%s=true changes nothing: an input of a batch is always joined into one"
            " buffer, and copied to the GPU once",
            _COALESCE,
        )
