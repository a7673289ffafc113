"""Choice of the versions of a model that are served, and of the version for a request. Pure functions."""

import re
from collections.abc import Iterable
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg

_INT64_MAX: Final = (1 << 63) - 1
# As C's strtol: spaces, a sign, digits; the rest is ignored.
_LEADING_INTEGER: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]{1,32})")


def served_versions(policy: mc.ModelVersionPolicy, on_disk: Iterable[int]) -> list[int]:
    """Return the versions the policy serves, ascending; a policy without a choice serves all, as in Triton.

    Args:
        policy: `version_policy` of the normalised configuration.
        on_disk: versions that have a directory, in any order.
    """
    versions = sorted(set(on_disk))
    choice = policy.WhichOneof("policy_choice")
    if choice == "specific":
        return [version for version in versions if version in policy.specific.versions]
    if choice == "latest":
        return versions[max(0, len(versions) - policy.latest.num_versions) :]
    return versions


def absent_versions(policy: mc.ModelVersionPolicy, on_disk: Iterable[int]) -> list[int]:
    """Return the versions a `specific` policy names that have no directory; Triton logs them only."""
    return sorted(set(policy.specific.versions) - set(on_disk))


def require_versions(model: str, versions: list[int]) -> list[int]:
    """Return `versions` unless there are none.

    Raises:
        InferError: INVALID_ARG when the policy leaves the model without a version.
    """
    if not versions:
        what = "at least one version must be available under the version policy of model"
        raise invalid_arg(f"{what} '{model}'")
    return versions


def latest(ready: Iterable[int]) -> int:
    """Return the version for a request without one: the numerically highest that is ready.

    Raises:
        ValueError: no version is ready.
    """
    return max(ready)


def parse_version(text: str) -> int | None:
    """Parse a request's version string; "" is None, the latest.

    Triton parses it with `std::stol` (GetModelVersionFromString in its server), so "2x" is version 2.

    Raises:
        InferError: INVALID_ARG when the text does not begin with an integer, or the integer is negative.
    """
    if not text:
        return None
    match = _LEADING_INTEGER.match(text)
    version = int(match[1]) if match else None
    if version is None or not -_INT64_MAX <= version <= _INT64_MAX:
        raise invalid_arg(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if version < 0:
        raise invalid_arg(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version
