"""Model repositories in S3, Google Cloud Storage, Azure Storage and Alibaba's OSS, read through fsspec.

Addresses and credentials are Triton's: `s3://bucket/path`, `s3://http://host:port/bucket/path`,
`gs://bucket/path`, `as://account/container/path` (and, for other services with Azure's protocol,
`as://http://host:port/account/container/path`); the clouds' own environment variables, or the JSON file that
TRITON_CLOUD_CREDENTIAL_PATH names. `oss://bucket/path` is ours. The packages are imported when a repository
is opened, not before.
"""

import importlib
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.core.errors import InferError, internal, invalid_arg
from app.settings.repositories import REMOTE_SCHEMES

CREDENTIALS: Final = "TRITON_CLOUD_CREDENTIAL_PATH"

_S3_ENDPOINT: Final = re.compile(r"s3://(https?://)?([0-9A-Za-z.\-]+:[0-9]+)/(.+)")
_AZURE_ENDPOINT: Final = re.compile(r"(https?)://([0-9A-Za-z.\-]+:[0-9]+)/([^/]+)/(.+)")
# The bucket only in the host name, and no checksums, which newer SDKs add by default:
# https://www.alibabacloud.com/help/en/oss/developer-reference/use-amazon-s3-sdks-to-access-oss
_OSS: Final[dict[str, Any]] = {
    "s3": {"addressing_style": "virtual"},
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
_OSS_KEYS: Final = {
    "key_id": "OSS_ACCESS_KEY_ID",
    "secret_key": "OSS_ACCESS_KEY_SECRET",
    "session_token": "OSS_SESSION_TOKEN",
}
_AZURE_KEYS: Final = {
    "account_str": "AZURE_STORAGE_ACCOUNT",
    "account_key": "AZURE_STORAGE_KEY",
    "auth_type": "AZURE_STORAGE_AUTH_TYPE",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
}
_ADDRESSING: Final = "AWS_S3_ADDRESSING_STYLE"
_STYLES: Final = ("auto", "path", "virtual")
_VERSION: Final = re.compile(r"0|[1-9][0-9]{0,18}")


class RemoteFile(NamedTuple):
    """A file of a remote repository: path below the listed folder, size in bytes, and stamp.

    `stamp` is 60 bits of a digest of etag (or modification time) and size, so that it also serves as the
    modification time, in ns, of a local stand-in.
    """

    path: str
    size: int
    stamp: int

    @property
    def version(self) -> int | None:
        """The version whose directory contains it; None for a shared file."""
        top, slash, _ = self.path.partition("/")
        return int(top) if slash and _VERSION.fullmatch(top) else None


class Listing(NamedTuple):
    """Files and directories below a folder; a bucket has only directories that were created explicitly."""

    files: tuple[RemoteFile, ...]
    directories: tuple[str, ...]


class Storage:
    """A folder in a cloud. Methods block, and raise `InferError` (INTERNAL) when it cannot be read."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        scheme = url.partition("://")[0]
        options, self._root = _options(self.url, _credential(scheme, self.url))
        remote = REMOTE_SCHEMES[scheme]
        try:
            kind = getattr(importlib.import_module(remote.module), remote.filesystem)
        except ImportError as error:
            raise internal(remote.missing(url)) from error
        self._fs: Any = kind(**options, use_listings_cache=False, skip_instance_cache=True)

    def listing(self, below: str = "") -> Listing:
        """List everything below a folder."""
        top = posixpath.join(self._root, below) if below else self._root
        with self._translated_errors(below):
            found = self._find(top, missing_ok=bool(below))
        files, directories = [], []
        for path, info in found.items():
            relative = path.removeprefix(top).strip("/")
            if not relative or not path.startswith(top + "/") or not _is_plain(relative):
                continue
            if info.get("type") == "directory" or path.endswith("/"):
                directories.append(relative)
            else:
                files.append(RemoteFile(relative, int(info["size"] or 0), _stamp(info)))
        return Listing(tuple(sorted(files)), tuple(sorted(directories)))

    def _find(self, top: str, missing_ok: bool) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = self._fs.find(top, withdirs=True, detail=True)
        except FileNotFoundError:
            if not missing_ok:
                raise
            return {}
        return found

    def read(self, path: str) -> bytes:
        """Return the contents of a file."""
        with self._translated_errors(path):
            content: bytes = self._fs.cat_file(posixpath.join(self._root, path))
        return content

    def download(self, files: Iterable[RemoteFile], directory: Path) -> None:
        """Download files concurrently to the same paths below a directory."""
        sources, targets = [], []
        for file in files:
            target = directory / file.path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sources.append(posixpath.join(self._root, file.path))
            targets.append(str(target))
        with self._translated_errors(""):
            if sources:
                self._fs.get(sources, targets)

    @contextmanager
    def _translated_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except InferError:
            raise
        except Exception as error:
            place = posixpath.join(self.url, path) if path else self.url
            raise internal(f"failed to read {place}: {type(error).__name__}: {error}") from error


def _is_plain(path: str) -> bool:
    return (
        posixpath.normpath(path) == path
        and path != ".."
        and not path.startswith(("../", "/"))
        and not any(character in path for character in "\\\0")
    )


def _stamp(info: dict[str, Any]) -> int:
    mark = next((info[key] for key in ("ETag", "etag", "LastModified", "updated") if info.get(key)), "")
    return int.from_bytes(blake2b(f"{mark}\0{info['size']}".encode(), digest_size=8).digest()) >> 4


def _credential(scheme: str, url: str) -> Any:
    """Return the entry of the credential file whose address is the longest prefix of `url`, or None."""
    path = os.environ.get(CREDENTIALS)
    if not path:
        return None
    try:
        entries = json.loads(Path(path).read_text()).get(scheme, {})
        matching = [address for address in entries if url.startswith(address)]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise internal(f"{CREDENTIALS}: cannot read '{path}': {error}") from error
    return entries[max(matching, key=len)] if matching else None


def _options(url: str, credential: Any) -> tuple[dict[str, Any], str]:
    """Return the arguments of fsspec's class, and the path of the folder in it."""
    scheme, _, rest = url.partition("://")
    try:
        if scheme == "s3":
            return _s3_options(url, rest, credential or {})
        if scheme == "oss":
            return _oss_options(url, rest, credential or {})
        if scheme == "gs":
            return ({"token": credential} if credential else {}), rest
        return _azure_options(rest, credential or {})
    except AttributeError as error:
        raise invalid_arg(
            f"{CREDENTIALS}: the entry for '{url}' is not of the form Triton documents"
        ) from error


def _s3_options(url: str, rest: str, credential: dict[str, str]) -> tuple[dict[str, Any], str]:
    given = {
        "key": credential.get("key_id"),
        "secret": credential.get("secret_key"),
        "token": credential.get("session_token"),
        "profile": credential.get("profile"),
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    client: dict[str, str] = {"region_name": credential["region"]} if credential.get("region") else {}
    config: dict[str, Any] = {}
    match = _S3_ENDPOINT.fullmatch(url)
    if match is not None:
        scheme, host, rest = match.groups()
        client["endpoint_url"] = (scheme or "http://") + host
        if "aliyuncs.com" in host:
            config = _OSS
    style = credential.get("addressing_style") or os.environ.get(_ADDRESSING, "")
    if style:
        if style not in _STYLES:
            raise invalid_arg(f"{_ADDRESSING}: expected one of {', '.join(_STYLES)}, got '{style}'")
        config = {**config, "s3": {"addressing_style": style}}
    if config:
        options["config_kwargs"] = config
    if client:
        options["client_kwargs"] = client
    return options, rest.rstrip("/")


def _oss_options(url: str, rest: str, credential: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Return the options for Alibaba's OSS, which is read by its S3 protocol; its variables are OSS's own."""
    region = credential.get("region") or os.environ.get("OSS_REGION", "")
    endpoint = credential.get("endpoint") or os.environ.get("OSS_ENDPOINT", "")
    if not endpoint and region:
        endpoint = f"https://oss-{region.removeprefix('oss-')}.aliyuncs.com"
    if not endpoint:
        raise invalid_arg(f"'{url}' needs OSS_REGION (such as cn-hangzhou) or OSS_ENDPOINT (an address)")
    given = {
        name: credential.get(name) or os.environ.get(variable, "") for name, variable in _OSS_KEYS.items()
    }
    options, path = _s3_options(url, rest, {**credential, **given, "region": region})
    client = {**options.get("client_kwargs", {}), "endpoint_url": _with_scheme(endpoint)}
    return {"config_kwargs": _OSS, **options, "client_kwargs": client}, path


def _with_scheme(endpoint: str) -> str:
    return endpoint if "://" in endpoint else f"https://{endpoint}"


def _azure_options(rest: str, credential: dict[str, str]) -> tuple[dict[str, Any], str]:
    given = credential or {name: os.environ.get(variable, "") for name, variable in _AZURE_KEYS.items()}
    key = given.get("account_key")
    endpoint = _AZURE_ENDPOINT.fullmatch(rest)
    if endpoint is not None:
        scheme, host, account, path = endpoint.groups()
        parts = {"AccountName": given.get("account_str") or account, "AccountKey": key or ""}
        parts["BlobEndpoint"] = f"{scheme}://{host}/{account}"
        text = ";".join(f"{name}={value}" for name, value in parts.items() if value)
        return {"connection_string": text}, path.rstrip("/")
    account, _, path = rest.partition("/")
    options: dict[str, Any] = {"account_name": given.get("account_str") or account.partition(".")[0]}
    if given.get("auth_type") == "managed_identity":
        options["credential"] = _managed_identity(given.get("client_id", ""))
    elif key and given.get("auth_type") != "default":
        options["account_key"] = key
    else:
        options["anon"] = False  # uses the identity that azure-identity finds
    return options, path.rstrip("/")


def _managed_identity(client_id: str) -> Any:
    """Return the machine's identity: the one with this client id, that of a user, or the system's."""
    identity = importlib.import_module("azure.identity.aio")
    return identity.ManagedIdentityCredential(client_id=client_id or None)
