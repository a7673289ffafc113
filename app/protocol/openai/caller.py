"""Who asks, and how urgently: what requests for vectors and scores have in common. No I/O."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from app.protocol.openai.fields import Fields

IGNORED: Final = ("safety_identifier", "metadata", "store", "service_tier")
NAMES: Final = ("user", "prompt_cache_key")
"""Parameters of the requests to the model, by which a rollout may choose the version."""
_MAX_NAME: Final = 1024
_MAX_UINT64: Final = (1 << 64) - 1


class Caller(NamedTuple):
    """What the requests to a model have of the client's.

    Attributes:
        names: parameters.
        priority, timeout_us: as of v2.
    """

    names: Mapping[str, str] = {}
    priority: int = 0
    timeout_us: int = 0


def read_caller(fields: Fields) -> Caller:
    """Read the fields.

    Raises:
        OpenAIError: one is not allowed.
    """
    names = {name: fields.text(name, limit=_MAX_NAME) for name in NAMES}
    return Caller(
        {name: value for name, value in names.items() if value},
        fields.integer("priority", 0, _MAX_UINT64) or 0,
        fields.integer("timeout", 0, _MAX_UINT64) or 0,
    )
