"""Repositories in S3, on a real server of the moto package: listing and local copies."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import msgspec
import pytest
from moto.server import ThreadedMotoServer

from app.core.errors import InferError
from app.core.installed.installation import install_command
from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from deployments.manager.loading import catalog as catalog_module
from deployments.manager.loading.catalog import Catalog
from deployments.model_store import mirror as mirror_module
from deployments.model_store.cache import NodeCache
from deployments.model_store.mirror import copies_directory
from deployments.model_store.storage import Storage, _credential, _options
from deployments.replica.materialize import materialize_model
from deployments.spec import ModelSpec, ReplicaSettings
from tests.unit.deployments.model_directories import CONFIG, KEY


class Bucket:
    """A bucket of an S3 server, with a repository below `models/`. Its client is slow to make."""

    def __init__(self, host: str) -> None:
        keys = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}
        self.client: Any = boto3.client("s3", endpoint_url=f"http://{host}", region_name="us-east-1", **keys)
        self.client.create_bucket(Bucket="bucket")
        self.url = f"s3://http://{host}/bucket/models"

    def put(self, path: str, content: str = "") -> None:
        self.client.put_object(Bucket="bucket", Key=f"models/{path}", Body=content.encode())

    def delete(self, path: str) -> None:
        self.client.delete_object(Bucket="bucket", Key=f"models/{path}")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    started = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    yield f"{host}:{port}"
    started.stop()


@pytest.fixture(scope="module")
def empty(server: str) -> Bucket:
    return Bucket(server)


@pytest.fixture
def bucket(empty: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for module in (catalog_module, mirror_module):
        monkeypatch.setattr(module, "private_root", lambda: tmp_path / "private")
    made = empty
    made.put("m/config.pbtxt", CONFIG)
    made.put("m/labels.txt", "cat\ndog\n")
    made.put("m/1/model.bin", "one")
    made.put("m/2/deep/model.bin", "twotwo")
    made.put("readme.txt", "no model")
    yield made
    for item in made.client.list_objects_v2(Bucket="bucket").get("Contents", []):
        made.client.delete_object(Bucket="bucket", Key=item["Key"])


@pytest.fixture
def catalog(bucket: Bucket) -> Catalog:
    return Catalog(from_args({"model_repository": [bucket.url]}), KEY)


def files_of(directory: str) -> list[str]:
    root = Path(directory)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def spec_of(catalog: Catalog, version: int = 2) -> ModelSpec:
    return catalog.candidate("m", None).spec(version, f"m:{version}")


def test_models_and_versions_are_found(bucket: Bucket, catalog: Catalog) -> None:
    bucket.put("n/1/", "")
    found = catalog.scan()
    assert {name: entry.versions for name, entry in found.items()} == {"m": (1, 2), "n": (1,)}
    candidate = catalog.candidate("m", None)
    assert (candidate.config.backend, candidate.versions) == ("identity", (2,))


def test_version_is_downloaded_once_per_node(bucket: Bucket, catalog: Catalog) -> None:
    spec = spec_of(catalog)
    assert spec.origin == f"{bucket.url}/m"
    local = materialize_model(spec)
    assert files_of(local.spec.directory) == ["2/deep/model.bin", "config.pbtxt", "labels.txt"]
    assert (Path(local.spec.directory) / "2/deep/model.bin").read_text() == "twotwo"
    local.release()
    for path in ("2/deep/model.bin", "config.pbtxt", "labels.txt"):
        bucket.delete(f"m/{path}")
    assert materialize_model(spec).spec.directory == local.spec.directory, (
        "the second start reads nothing remote"
    )


def test_leased_copy_is_not_evicted(bucket: Bucket, catalog: Catalog) -> None:
    small = ReplicaSettings(cache_bytes=80)
    spec = msgspec.structs.replace(spec_of(catalog), server=small)
    local = materialize_model(spec)
    bucket.put("m/2/deep/model.bin", "another")
    changed = msgspec.structs.replace(spec_of(catalog), server=small)
    with pytest.raises(InferError, match="no room for"):
        materialize_model(changed)
    local.release()
    materialize_model(changed)
    assert len(NodeCache(Path(spec.cache_directory), 0).listing()) == 1


def test_remote_changes_are_detected(bucket: Bucket, catalog: Catalog) -> None:
    def fingerprints() -> dict[str, str]:
        return catalog.fingerprints(catalog.scan())

    before = fingerprints()
    spec = spec_of(catalog)
    assert fingerprints() == before
    assert catalog.candidate("m", None).unchanged(spec)
    bucket.put("m/2/deep/model.bin", "eleven")  # as long as before
    assert fingerprints() != before
    assert not catalog.candidate("m", None).unchanged(spec)
    bucket.put("m/2/deep/model.bin", "twotwo")
    bucket.put("m/config.pbtxt", CONFIG.replace("4", "8"))
    assert catalog.candidate("m", None).config.max_batch_size == 8
    for path in ("config.pbtxt", "labels.txt", "1/model.bin", "2/deep/model.bin"):
        bucket.delete(f"m/{path}")
    assert catalog.scan() == {}
    with pytest.raises(InferError, match="failed to load 'm', failed to poll from model repository"):
        catalog.candidate("m", None)


def test_model_changed_during_its_load_is_refused(bucket: Bucket, catalog: Catalog) -> None:
    spec = spec_of(catalog)
    bucket.put("m/2/deep/model.bin", "eleven")
    with pytest.raises(InferError, match=r"model 'm' changed in .* while it was being loaded"):
        materialize_model(spec)


def test_keys_outside_the_repository_are_ignored(bucket: Bucket, catalog: Catalog, tmp_path: Path) -> None:
    bucket.put("m/2/../../../escape", "x")
    bucket.put("m/2//double", "x")
    assert [file.path for file in Storage(f"{bucket.url}/m").listing().files] == [
        "1/model.bin",
        "2/deep/model.bin",
        "config.pbtxt",
        "labels.txt",
    ]
    materialize_model(spec_of(catalog))
    assert list(tmp_path.rglob("escape")) == []


def test_missing_bucket_is_reported(bucket: Bucket) -> None:
    nowhere = Catalog(from_args({"model_repository": [bucket.url.replace("bucket", "nowhere")]}), KEY)
    with pytest.raises(InferError, match=r"failed to read s3://http://.*/nowhere/models: "):
        nowhere.scan()


OSS = {
    "s3": {"addressing_style": "virtual"},
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
ADDRESSES = [
    ("s3://bucket/a/b", {}, "bucket/a/b"),
    ("s3://host:9000/bucket/a", {"client_kwargs": {"endpoint_url": "http://host:9000"}}, "bucket/a"),
    ("s3://https://host:9000/bucket", {"client_kwargs": {"endpoint_url": "https://host:9000"}}, "bucket"),
    (
        "s3://https://oss-cn-hangzhou.aliyuncs.com:443/bucket/a",
        {
            "client_kwargs": {"endpoint_url": "https://oss-cn-hangzhou.aliyuncs.com:443"},
            "config_kwargs": OSS,
        },
        "bucket/a",
    ),
    ("gs://bucket/a", {}, "bucket/a"),
    ("as://account/container/a", {"account_name": "account", "anon": False}, "container/a"),
]


@pytest.mark.parametrize(("url", "options", "path"), ADDRESSES)
def test_addresses_of_triton_are_understood(
    url: str, options: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_KEY", raising=False)
    assert _options(url, None) == (options, path)


def test_oss_is_read_by_its_s3_protocol(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OSS_REGION", "OSS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InferError, match=r"needs OSS_REGION \(such as cn-hangzhou\) or OSS_ENDPOINT"):
        Storage("oss://bucket/models")
    monkeypatch.setenv("OSS_REGION", "cn-hangzhou")
    monkeypatch.setenv("OSS_ACCESS_KEY_ID", "i")
    monkeypatch.setenv("OSS_ACCESS_KEY_SECRET", "s")
    options, path = _options("oss://bucket/models", None)
    assert options == {
        "key": "i",
        "secret": "s",
        "client_kwargs": {
            "region_name": "cn-hangzhou",
            "endpoint_url": "https://oss-cn-hangzhou.aliyuncs.com",
        },
        "config_kwargs": OSS,
    }
    assert path == "bucket/models"
    monkeypatch.setenv("OSS_ENDPOINT", bucket.url.removeprefix("s3://").partition("/bucket")[0])
    assert list(Catalog(from_args({"model_repository": "oss://bucket/models"}), KEY).scan()) == list(
        Catalog(from_args({"model_repository": bucket.url}), KEY).scan()
    )


def test_addressing_style_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ADDRESSING_STYLE", "virtual")
    virtual = {"s3": {"addressing_style": "virtual"}}
    assert _options("s3://https://host:9000/bucket", None)[0]["config_kwargs"] == virtual
    path = {"s3": {"addressing_style": "path"}}
    assert _options("s3://bucket/a", {"addressing_style": "path"})[0] == {"config_kwargs": path}
    with pytest.raises(InferError, match="expected one of auto, path, virtual, got 'x'"):
        _options("s3://bucket/a", {"addressing_style": "x"})


def test_identity_of_an_azure_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def identity(client_id: str | None) -> str:
        made.append(client_id)
        return "identity"

    module = SimpleNamespace(ManagedIdentityCredential=identity)
    monkeypatch.setitem(sys.modules, "azure.identity.aio", module)
    monkeypatch.setenv("AZURE_STORAGE_KEY", "")
    monkeypatch.setenv("AZURE_STORAGE_AUTH_TYPE", "managed_identity")
    monkeypatch.setenv("AZURE_STORAGE_CLIENT_ID", "4711")
    assert _options("as://n/c", None)[0] == {"account_name": "n", "credential": "identity"}
    entry = {"account_str": "m", "auth_type": "managed_identity", "client_id": ""}
    assert _options("as://n/c", entry)[0] == {"account_name": "m", "credential": "identity"}
    assert made == ["4711", None]
    entry = {"account_str": "m", "account_key": "k", "auth_type": "default"}
    assert _options("as://n/c", entry)[0] == {"account_name": "m", "anon": False}


def test_bucket_of_repositories_is_told(bucket: Bucket) -> None:
    above = Catalog(from_args({"model_repository": [bucket.url.removesuffix("/models")]}), KEY)
    with pytest.raises(InferError) as caught:
        above.candidate("models", None)
    assert f"'{bucket.url}' is a directory of models (" in caught.value.message


def test_credential_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials.json"
    s3 = {"": {"profile": "p"}, "s3://bucket": {"key_id": "i", "secret_key": "s", "region": "r"}}
    file.write_text(json.dumps({"s3": s3, "gs": {"": "/key.json"}, "as": {"": {"account_key": "k"}}}))
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(file))
    options, _ = _options("s3://bucket/a", _credential("s3", "s3://bucket/a"))
    assert options == {"key": "i", "secret": "s", "client_kwargs": {"region_name": "r"}}
    assert _options("s3://x/a", _credential("s3", "s3://x/a"))[0] == {"profile": "p"}
    assert _options("gs://b/a", _credential("gs", "gs://b/a"))[0] == {"token": "/key.json"}
    assert _options("as://n/c", _credential("as", "as://n/c"))[0] == {"account_name": "n", "account_key": "k"}
    file.write_text("{")
    with pytest.raises(InferError, match="TRITON_CLOUD_CREDENTIAL_PATH: cannot read"):
        _credential("s3", "s3://bucket/a")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.settings.repositories.find_spec", lambda name: None)
    with pytest.raises(SettingsError) as caught:
        from_args({"model_repository": "gs://bucket/models"})
    assert str(caught.value) == (
        f"model_repository: 'gs://bucket/models' needs the package gcsfs: {install_command('gs')}"
    )
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InferError, match=r"needs the package s3fs: .* pip install .*\[s3\]'"):
        Storage("s3://bucket/models")


def test_directory_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_AWS_MOUNT_DIRECTORY", "/mnt")
    assert copies_directory("", "s3://bucket/models").parent == Path("/mnt")
    assert copies_directory("/fast", "s3://bucket/models").parent == Path("/fast")
