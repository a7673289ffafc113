"""Locations of model repositories: local directories, and clouds whose package is installed."""

import os
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from app.core.installed.installation import install_command
from app.settings.flag.errors import SettingsError


class RemoteScheme(NamedTuple):
    """A scheme of remote repositories: the fsspec implementation that reads it, and its settings.

    Attributes:
        package: the package to install; `extra` is the extra of ours that requires it.
        module: the module of `filesystem`, the class that reads the cloud.
        mount_variable: Triton's variable for the directory of local copies.
    """

    package: str
    extra: str
    module: str
    filesystem: str
    mount_variable: str

    def is_installed(self) -> bool:
        """Return whether the package is there, without importing it."""
        return find_spec(self.package) is not None

    def missing(self, url: str) -> str:
        """Return the error text for a repository whose package is not installed."""
        return f"'{url}' needs the package {self.package}: {install_command(self.extra)}"


REMOTE_SCHEMES: Final = {
    "s3": RemoteScheme("s3fs", "s3", "s3fs", "S3FileSystem", "TRITON_AWS_MOUNT_DIRECTORY"),
    "oss": RemoteScheme("s3fs", "s3", "s3fs", "S3FileSystem", "TRITON_AWS_MOUNT_DIRECTORY"),
    # Not the class of the package itself, which asks another service, over gRPC, for the kind of the bucket.
    "gs": RemoteScheme("gcsfs", "gs", "gcsfs.core", "GCSFileSystem", "TRITON_GCS_MOUNT_DIRECTORY"),
    "as": RemoteScheme("adlfs", "azure", "adlfs", "AzureBlobFileSystem", "TRITON_AZURE_MOUNT_DIRECTORY"),
}
"""The clouds a repository may be in, by the scheme of its address."""


def remote_scheme(url: str) -> RemoteScheme | None:
    """Return the table's row for an address; None for an unknown scheme."""
    return REMOTE_SCHEMES.get(url.partition("://")[0])


def directories(paths: tuple[str, ...], label: str, must_exist: bool = True) -> tuple[str, ...]:
    """Return repository paths made absolute and without duplicates; addresses of clouds stay as they are.

    Raises:
        SettingsError: there is none; one is not a known cloud or, with `must_exist`, no directory of models.
    """
    if not paths:
        raise SettingsError(f"{label} must be specified")
    found: dict[object, str] = {}
    for path in paths:
        if "://" in path:
            _check_remote(path, label)
            found.setdefault(path.rstrip("/"), path.rstrip("/"))
            continue
        if must_exist and (fault := _fault(path)):
            raise SettingsError(f"{label}: {fault}")
        # As it is given, since a path through /proc/PID/root means another place once its links are resolved.
        found.setdefault(_identity(path), str(Path(path).absolute()))
    return tuple(found.values())


def _fault(path: str) -> str:
    """Return why a path is no repository; "" if it may be one."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"directory '{path}' does not exist"
    except OSError as error:
        return f"directory '{path}' cannot be opened: {error.strerror}"
    if not stat.S_ISDIR(mode):
        return f"'{path}' is not a directory"
    return (
        f"'{path}' is a model, not a repository of models: name its parent" if _is_model(Path(path)) else ""
    )


def _identity(path: str) -> object:
    """Return what is equal for two names of one directory."""
    try:
        status = os.stat(path)
    except OSError:
        return str(Path(path).absolute())
    return status.st_dev, status.st_ino


def _is_model(directory: Path) -> bool:
    """Return whether a directory has what belongs one level below, as when KServe is given a single model."""
    # Neither raises if the directory may not be read, which a load reports.
    return os.path.isfile(directory / "config.pbtxt") and any(map(Path.is_dir, directory.glob("[0-9]*")))


def _check_remote(url: str, label: str) -> None:
    remote = remote_scheme(url)
    if remote is None:
        raise SettingsError(f"{label}: expected a directory, s3://, gs://, as:// or oss://, got '{url}'")
    if not remote.is_installed():
        raise SettingsError(f"{label}: {remote.missing(url)}")
