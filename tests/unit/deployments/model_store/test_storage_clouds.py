"""Repositories in clouds, each against a real emulator in a process of its own.

Azure's is a package of npm: `make test-remote` installs it, and its case is left out elsewhere.
"""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.settings.load import from_args
from deployments.manager.loading import catalog as catalog_module
from deployments.manager.loading.catalog import Catalog
from deployments.model_store import mirror as mirror_module
from deployments.model_store.cache import NodeCache
from deployments.replica.materialize import materialize_model
from deployments.spec import ModelSpec
from tests.clouds import S3, Azure, Cable, Cloud, Gcs, tokens
from tests.unit.deployments.model_directories import CONFIG, KEY

VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_PROFILE"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"),
    *("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
    "TRITON_CLOUD_CREDENTIAL_PATH",
)
WEIGHTS = bytes(range(256)) * 16384  # 4 MiB


@pytest.fixture(scope="module")
def asked() -> Iterator[tuple[str, list[bytes]]]:
    with tokens() as server:
        yield server


@pytest.fixture(scope="module", params=["s3", "gs", "as"])
def emulator(
    request: pytest.FixtureRequest, asked: tuple[str, list[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    kinds: dict[str, Any] = {
        "s3": S3,
        "gs": lambda: Gcs(tmp_path_factory.mktemp("key"), asked[0]),
        "as": Azure,
    }
    if request.param == "as" and Azure.missing():
        pytest.skip(Azure.missing())
    made: Cloud = kinds[request.param]()
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
def cloud(emulator: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """An emulator with one model, and the environment variables that address it."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    set_all(monkeypatch, emulator.variables)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for module in (catalog_module, mirror_module):
        monkeypatch.setattr(module, "private_root", lambda: tmp_path / "private")
    fill(emulator)
    yield emulator
    emulator.port, emulator.host = emulator.own_port, "127.0.0.1"


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def fill(cloud: Cloud) -> None:
    cloud.put("m/config.pbtxt", CONFIG.encode())
    cloud.put("m/1/weights", b"one")
    cloud.put("m/2/deep/weights", WEIGHTS)


def catalog_of(cloud: Cloud) -> Catalog:
    return Catalog(from_args({"model_repository": [cloud.url]}), KEY)


def spec_of(catalog: Catalog) -> ModelSpec:
    return catalog.candidate("m", None).spec(2, "m:2")


def weights(spec: ModelSpec) -> bytes:
    local = materialize_model(spec)
    local.release()
    return (Path(local.spec.directory) / "2/deep/weights").read_bytes()


def test_version_is_copied_and_changes_are_detected(cloud: Cloud) -> None:
    catalog = catalog_of(cloud)
    before = catalog.fingerprints(catalog.scan())
    assert catalog.scan()["m"].versions == (1, 2)
    assert catalog.fingerprints(catalog.scan()) == before
    spec = spec_of(catalog)
    assert weights(spec) == WEIGHTS
    cloud.put("m/2/deep/weights", b"two")
    assert catalog.fingerprints(catalog.scan()) != before
    assert weights(spec_of(catalog)) == b"two"
    assert weights(spec) == WEIGHTS, "the copy of what was loaded before is still on this node"
    for path in ("m/config.pbtxt", "m/1/weights", "m/2/deep/weights"):
        cloud.delete(path)
    assert catalog.scan() == {}


def test_credentials_of_the_file(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, variables = cloud.credential
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({cloud.scheme: {"": {}, cloud.url: entry}}))
    set_all(monkeypatch, {**variables, "TRITON_CLOUD_CREDENTIAL_PATH": str(file)})
    assert weights(spec_of(catalog_of(cloud))) == WEIGHTS


def test_credentials_reach_the_service(
    cloud: Cloud, asked: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(cloud, Gcs):
        asked[1].clear()
        catalog_of(cloud).scan()
        assert b"jwt-bearer" in asked[1][0], "the service account's key was used for a token"
    elif isinstance(cloud, Azure):
        monkeypatch.setenv("AZURE_STORAGE_KEY", Azure.key[::-1].strip("=") + "==")
        with pytest.raises(InferError, match=r"failed to read as://http://"):
            catalog_of(cloud).scan()


@pytest.fixture
def cable(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cable]:
    """A proxy that leads every host name to the emulator."""
    address = socket.getaddrinfo

    def here(_host: Any, *arguments: Any, **options: Any) -> Any:
        return address("127.0.0.1", *arguments, **options)

    laid = Cable(cloud.own_port)
    cloud.port = laid.port
    monkeypatch.setattr(socket, "getaddrinfo", here)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield laid
    laid.close()


@pytest.mark.parametrize("emulator", ["s3"], indirect=True)
@pytest.mark.parametrize(
    ("host", "bucket_in_host"),
    [
        ("s3.oss-cn-hangzhou.aliyuncs.com", True),
        ("oss-cn-beijing-internal.aliyuncs.com", True),
        ("minio", False),
    ],
)
def test_bucket_is_addressed_as_the_endpoint_needs(
    cloud: S3, cable: Cable, host: str, bucket_in_host: bool
) -> None:
    cloud.host = host
    assert weights(spec_of(catalog_of(cloud))) == WEIGHTS
    heads = [head.split(b"\r\n") for head in bytes(cable.asked).split(b"\r\n\r\n") if head]
    hosts = {line.split(b": ")[1].decode() for head in heads for line in head if line.startswith(b"Host: ")}
    assert hosts == {f"{'bucket.' * bucket_in_host}{host}:{cable.port}"}
    paths = {head[0].split()[1].decode() for head in heads}
    assert any(path.partition("?")[0].endswith("/models/m/2/deep/weights") for path in paths)
    assert all(path.startswith("/bucket") is not bucket_in_host for path in paths)
    sent = bytes(cable.asked).lower()
    assert b"aws4-hmac-sha256" in sent
    assert b"aws-chunked" not in sent
    assert (b"x-amz-checksum" in sent) is not bucket_in_host, "OSS knows nothing of them"


def test_storage_failure_during_a_download(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Azure.missing() and not isinstance(cloud, Gcs):
        pytest.skip("the client tries for half a minute: make test-remote")
    cable = Cable(cloud.own_port)
    cloud.port = cable.port
    set_all(monkeypatch, cloud.variables)
    impatient(monkeypatch)
    spec = spec_of(catalog_of(cloud))
    cable.broken, cable.break_after = cloud.kill, len(WEIGHTS) // 2
    with pytest.raises(InferError) as caught:
        materialize_model(spec)
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message.startswith(f"failed to read {cloud.url}/m: ")
    assert len(caught.value.message) < 2000
    cache = Path(spec.cache_directory)
    assert NodeCache(cache, 0).listing() == []
    assert [path for path in cache.rglob("*") if path.is_file() and path.parent != cache] == []
    cloud.start()
    cable.break_after = None
    fill(cloud)
    assert weights(spec_of(catalog_of(cloud))) == WEIGHTS
    cable.close()


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the clients' pauses between retries, which add up to half a minute."""
    import asyncio

    async def pause(delay: float, result: Any = None) -> Any:
        await asyncio.sleep(min(delay, 0.01))

    quick = SimpleNamespace(**{**vars(asyncio), "sleep": pause})
    for module in (
        "gcsfs.retry",
        "s3fs.core",
        "aiobotocore.endpoint",
        "azure.core.pipeline.transport._base_async",
    ):
        try:
            monkeypatch.setattr(f"{module}.asyncio", quick)
        except (ImportError, AttributeError):
            continue
