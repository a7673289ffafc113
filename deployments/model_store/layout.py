"""Finds the models and versions of a model repository on a local path.

`<repository>/<model>/[config.pbtxt] [configs/<name>.pbtxt] [rollout.yaml] [tape.yaml]
[drift.yaml] [drift.json] [labels] <version>/<model file>`.
Nothing is cached or written. Directories are opened as they are given: links may lead anywhere.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from app.core.drift.reference import REFERENCE_FILE
from app.core.errors import InferError, encodable, internal, invalid_arg
from app.core.identifiers import identifier

CONFIG_FILE: Final = "config.pbtxt"
CONFIGS_DIRECTORY: Final = "configs"
ROLLOUT_FILE: Final = "rollout.yaml"
"""The policy by which a new version of the model takes over."""
TAPE_FILE: Final = "tape.yaml"
"""What of the model's requests is recorded."""
DRIFT_FILE: Final = "drift.yaml"
"""How the model's requests are watched; `drift.json` is what they are compared with."""
POLICY_FILES: Final = (ROLLOUT_FILE, TAPE_FILE, DRIFT_FILE, REFERENCE_FILE)
"""What no version is made of."""

_INT64_MAX: Final = (1 << 63) - 1
_NOT_VERSIONS: Final = frozenset({"warmup", "initial_state", CONFIGS_DIRECTORY})
SYSTEM_DIRECTORIES: Final = frozenset(
    {
        "lost+found",  # of ext4
        "@eaDir",  # of Synology's servers
        "@Recycle",  # of QNAP's
        "#recycle",
        "$RECYCLE.BIN",  # of disks that Windows has mounted
        "System Volume Information",
        "__MACOSX",  # of archives that macOS has made
        "__pycache__",
    }
)
"""What file systems and tools make, and no user; names that begin with a dot are none of models either."""
_NAME_MAX: Final = 255
# Names reach log lines, paths and command lines: no character that a terminal or a shell interprets.
_UNSAFE_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029;|&$<>`'\"*?!\\]")
_IN_TWO_REPOSITORIES: Final = "model appears in two or more repositories"


@dataclass(frozen=True)
class ModelEntry:
    """A model's directory as found on disk.

    Attributes:
        name: the directory's name, which is the model's; with escapes if it is not UTF-8.
        repository: the repository's path, as it was given.
        directory: `<repository>/<name>`.
        versions: versions that have a directory, ascending.
        reason: why the model cannot be served; "" if its directory is valid.
        warnings: Triton's messages on ignored directories, for the log when the model is loaded.
        namespace: the repository's, "" when there are no namespaces.
    """

    name: str
    repository: Path
    directory: Path
    versions: tuple[int, ...] = ()
    reason: str = ""
    warnings: tuple[str, ...] = ()
    namespace: str = ""

    @property
    def identifier(self) -> str:
        """The model's identifier in the server."""
        return identifier(self.namespace, self.name)

    @property
    def ambiguous(self) -> bool:
        """Whether two repositories have a model of this name."""
        return self.reason == _IN_TWO_REPOSITORIES


def check_model_name(name: str) -> None:
    """Check that a model may have a name.

    Raises:
        InferError: INVALID_ARG.
    """
    _check_no_path(name)
    if _UNSAFE_CHARACTERS.search(name):
        raise invalid_arg(
            f"invalid model name '{_shown(name)}', model name must not contain quotes, control or shell "
            "characters. Invalid stub name: contains invalid characters"  # Triton's text, for Python models
        )
    if encodable(name) != name:
        raise invalid_arg(f"invalid model name '{_shown(name)}', model name must be UTF-8")
    if len(name.encode()) > _NAME_MAX:
        raise invalid_arg(
            f"invalid model name '{_shown(name)}', model name must not exceed {_NAME_MAX} bytes"
        )


def _check_no_path(name: str) -> None:
    """Check a name as `ValidateModelName` in Triton's core (src/model_repository_manager) does."""
    trimmed = name.strip(" \t\n\v\f\r")
    if not trimmed:
        raise invalid_arg("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\0" in name or trimmed in (".", ".."):
        raise invalid_arg(
            f"invalid model name '{_shown(name)}', model name must not contain path traversal characters"
        )


def _shown(name: str) -> str:
    return name[:_NAME_MAX].encode("unicode_escape").decode("ascii")


def scan(repositories: Mapping[Path, str]) -> dict[str, ModelEntry]:
    """List the models of one or more repositories, by identifier in alphabetical order.

    Every directory is a model, except `SYSTEM_DIRECTORIES` and those whose name begins with a dot. A name
    found in two repositories of one namespace is listed once, with a reason and without versions: neither is
    served.

    Args:
        repositories: the namespace of each directory.

    Raises:
        InferError: INTERNAL when a repository cannot be read.
    """
    found: dict[str, ModelEntry] = {}
    for repository, namespace in repositories.items():
        for name in filter(_may_be_model, _directories(repository)):
            _add(found, _entry(repository, name, namespace))
    return dict(sorted(found.items()))


def find(repositories: Mapping[Path, str], name: str) -> list[ModelEntry]:
    """Look up the models of one name, one in each namespace, without listing the others.

    Raises:
        InferError: INVALID_ARG for a name that is empty or a path.
    """
    _check_no_path(name)
    found: dict[str, ModelEntry] = {}
    for repository, namespace in repositories.items():
        for directory in _listed_as(name, repository):
            _add(found, _entry(repository, directory, namespace))
    return list(found.values())


def _listed_as(name: str, repository: Path) -> list[str]:
    if "\\" in name:  # perhaps an escape of one that is not UTF-8
        return [directory for directory in _directories(repository) if encodable(directory) == name]
    return [name] if _may_be_model(name) and os.path.isdir(repository / name) else []


def models_in(directory: Path) -> list[str]:
    """Return the names below a directory that can be nothing but models, as of a repository; sorted."""
    try:
        names = [
            name for name in _directories(directory) if _may_be_model(name) and name not in _NOT_VERSIONS
        ]
    except InferError:
        return []
    entries = [_entry(directory, name, "") for name in names if _version_fault(name)]
    return [entry.name for entry in entries if entry.versions]


def system_directories(repositories: Iterable[Path]) -> list[Path]:
    """Return the directories of file systems and tools that are in repositories."""
    places = (repository / name for repository in repositories for name in sorted(SYSTEM_DIRECTORIES))
    return [place for place in places if os.path.isdir(place)]


def _may_be_model(name: str) -> bool:
    return name[0] != "." and name not in SYSTEM_DIRECTORIES


def _add(found: dict[str, ModelEntry], entry: ModelEntry) -> None:
    key = entry.identifier
    if key in found:
        entry = replace(found[key], versions=(), reason=_IN_TWO_REPOSITORIES, warnings=())
    found[key] = entry


def _directories(parent: Path) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            # os.path.isdir returns False for a broken or circular link; entry.is_dir would raise.
            return sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and os.path.isdir(entry.path)
            )
    except OSError as error:
        raise internal(f"failed to open directory {parent}: {error.strerror}") from None


def _entry(repository: Path, name: str, namespace: str) -> ModelEntry:
    entry = ModelEntry(encodable(name), repository, repository / name, namespace=namespace)
    try:
        check_model_name(name)
        versions, warnings = _versions(entry)
    except InferError as error:
        return replace(entry, reason=error.message)
    return replace(entry, versions=tuple(versions), warnings=tuple(warnings))


def _versions(entry: ModelEntry) -> tuple[list[int], list[str]]:
    versions, warnings = [], []
    for name in _directories(entry.directory):
        if name in _NOT_VERSIONS:
            continue
        fault = _version_fault(name)
        if fault:
            warnings.append(f"ignore version directory '{name}' which {fault}")
        else:
            versions.append(int(name))
    return sorted(versions), warnings


def _version_fault(name: str) -> str:
    if len(name) > 1 and name[0] == "0":
        return "contains leading zeros in its directory name"
    if not (name.isascii() and name.isdigit()) or len(name) > 19 or int(name) > _INT64_MAX:
        return "fails to convert to integral number"
    return ""


def is_inside(path: Path, parent: Path) -> bool:
    """Return whether a path is below another, links resolved."""
    try:
        return path.resolve().is_relative_to(parent.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name too long, a NUL
        return False
