"""What a requirements.txt asks for, beside the packages that are installed here."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from deployments.environments.requirements import lines_of

SETTING: Final = "--backend-config=python,requirements"
_SHOWN: Final = 5


def unlike(model: str, requirements: Path, folder: Path) -> str:
    """Return how the packages here differ from what a model's requirements.txt asks for; "" if they do not.

    Args:
        model: the model's name.
        requirements: its file.
        folder: the directory that must contain all files that it references.

    Raises:
        InferError: INVALID_ARG for a reference to another file.
    """
    found = differences(lines_of(requirements, folder))
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"model '{model}' has the packages of the server, unlike its '{requirements}':"
        f" {', '.join(found[:_SHOWN])}{more}; {SETTING}=install gives each such model an environment of its"
        " own"
    )


def differences(lines: Iterable[str]) -> list[str]:
    """Return a text for each requirement that the packages of this process do not meet."""
    return [text for line in lines if (text := _difference(line))]


def _difference(line: str) -> str:
    try:
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate():
            return ""
        here = version(wanted.name)
        met = wanted.specifier.contains(here, prereleases=True)
    except PackageNotFoundError:
        return f"{wanted.name} is not installed"
    except (InvalidRequirement, InvalidVersion):
        return ""  # an option, a path or an address, which pip judges
    return "" if met else f"{wanted.name} {here} for {wanted.name}{wanted.specifier}"
