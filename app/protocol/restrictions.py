"""Restricted APIs: categories of routes and RPCs that require a header with a secret value.

Categories, option format and texts are those of tritonserver's `--http-restricted-api` and
`--grpc-restricted-protocol`. No I/O.
"""

from collections.abc import Collection, Iterable, Mapping
from hmac import compare_digest
from typing import Any, Final, Literal, NamedTuple, get_args

GRPC_PREFIX: Final = "triton-grpc-protocol-"
"""Prefix of a key in the name of the gRPC metadata, as in tritonserver."""

Category = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
    "feedback",
]
"""Category of a route or RPC, stated where it is registered; `feedback` is not Triton's."""

CATEGORIES: Final[tuple[str, ...]] = get_args(Category)


class Restriction(NamedTuple):
    """The header that a category requires, spelled as the user wrote it, and its value."""

    header: str
    value: str

    def accepts(self, sent: bytes | None) -> bool:
        """Return whether a header's value is the required one."""
        # In a time that does not depend on where the values differ.
        return sent is not None and compare_digest(sent, self.value.encode())


Restrictions = Mapping[Category, Restriction]
"""Restriction of each restricted category."""


def parse_restrictions(
    entries: Iterable[str],
    option: str,
    noun: str,
    prefix: str = "",
    known: Collection[str] = CATEGORIES,
) -> Mapping[Any, Restriction]:
    """Parse `<category>[,<category>...]:<key>=<value>` options.

    Args:
        entries: the options' values.
        option: the option's name without dashes.
        noun: the word for a category in its texts, "api" or "protocol".
        prefix: of each key.
        known: the categories that there are.

    Raises:
        ValueError: another form, an unknown category, or one in two groups; the text is tritonserver's.
    """
    found: dict[Any, Restriction] = {}
    for entry in entries:
        names, _, pair = entry.partition(":")
        key, _, value = pair.partition("=")
        if not (names and key and value):
            form = "'<config name>:<setting>=<value>'"
            raise ValueError(f"--{option} option format is {form}. Got {entry}")
        for name in names.split(","):
            if name not in known and known is not CATEGORIES:  # as in Triton's front for OpenAI's clients
                raise ValueError(f"Unknown API '{name}'. Available APIs: {list(known)}")
            if name not in known:
                raise ValueError(f"unknown restricted {noun} '{name}'")
            if name in found:
                raise ValueError(f"restricted {noun} '{name}' can not be specified in multiple config groups")
            found[name] = Restriction(prefix + key, value)
    return found
