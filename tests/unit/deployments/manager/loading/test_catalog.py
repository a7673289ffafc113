"""Candidates read from a repository, and whether their load would change anything."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from app.transport.settings import TransportSettings
from deployments.manager.loading.candidate import Candidate
from deployments.manager.loading.catalog import Catalog
from deployments.spec import ModelSpec
from tests.unit.deployments.model_directories import CONFIG, KEY, add


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "models"
    add(path, "m", CONFIG)
    return path


def settings_of(repository: Path, **settings: Any) -> ServerSettings:
    return from_args({"model_repository": [str(repository)], **settings})


def catalog_of(repository: Path, **settings: Any) -> Catalog:
    return Catalog(settings_of(repository, **settings), KEY)


def loaded(candidate: Candidate, version: int = 1) -> ModelSpec:
    return candidate.spec(version, f"{candidate.name}:{version}")


def refusal(read: Callable[[], Candidate]) -> InferError:
    with pytest.raises(InferError) as caught:
        read()
    return caught.value


def test_spec_has_version_application_and_fingerprint(repository: Path) -> None:
    catalog = catalog_of(
        repository,
        max_pending_requests=7,
        max_pending_bytes=8,
        arena_bytes=9,
        arena_threshold=10,
        channel_heartbeat_secs=2,
        replica_timeout_secs=30,
        max_execution_secs=1.5,
        backend_directory="/b",
        backend_config=["identity,x=1"],
        channel_address="node",
    )
    candidate = catalog.candidate("m", None)
    assert (candidate.name, candidate.versions) == ("m", (1,))
    spec = candidate.spec(1, "m:1@3")
    assert (spec.name, spec.version, spec.application, spec.key) == ("m", 1, "m:1@3", KEY)
    assert spec.directory == str((repository / "m").resolve())
    assert (spec.server.limits.max_pending_requests, spec.server.limits.max_pending_bytes) == (7, 8)
    assert spec.server.backends.max_execution_s == 1.5
    assert spec.server.transport == TransportSettings(
        arena_bytes=9, arena_threshold=10, heartbeat=2.0, peer_timeout=30.0
    )
    assert (
        spec.server.backends.directory,
        spec.server.placement.channel_address,
        spec.server.auto_complete,
    ) == ("/b", "node", True)
    assert spec.server.backends.config == {"identity": {"x": "1"}}
    config = mc.ModelConfig.FromString(spec.config)
    assert (config.name, config.backend, config.max_batch_size) == ("m", "identity", 4)
    assert config.version_policy.latest.num_versions == 1


def test_version_policy_selects_versions(repository: Path) -> None:
    add(repository, "m", CONFIG + "version_policy { specific { versions: [ 3, 1, 9 ] } }", (1, 2, 3))
    assert catalog_of(repository).candidate("m", None).versions == (1, 3)
    add(repository, "none", CONFIG, ())
    error = refusal(lambda: catalog_of(repository).candidate("none", None))
    assert error.message == (
        "load failed for model 'none': at least one version must be available under the version policy of "
        f"model 'none'. No version directory is in '{repository.resolve()}/none': the model's files belong "
        f"into 'none/1/', or another number. Found in '{repository.resolve()}/none': 'config.pbtxt'.\n"
    )
    add(repository, "other", CONFIG + "version_policy { specific { versions: [ 3 ] } }", (1, 2))
    error = refusal(lambda: catalog_of(repository).candidate("other", None))
    assert error.message.endswith(f"model 'other'. Versions in '{repository.resolve()}/other': 1, 2.\n")


def test_unknown_model_is_refused(repository: Path) -> None:
    error = refusal(lambda: catalog_of(repository).candidate("nowhere", None))
    assert error.message == "failed to load 'nowhere', failed to poll from model repository"
    assert error.code is ErrorCode.INTERNAL


@pytest.mark.parametrize("name", ["", "..", "../m", "m/1", "m\0"])
def test_hostile_name_is_refused(repository: Path, name: str) -> None:
    error = refusal(lambda: catalog_of(repository).candidate(name, None))
    assert error.code is ErrorCode.INVALID_ARG
    assert ("must not contain path traversal characters" in error.message) == bool(name)


@pytest.mark.parametrize("name", ["a\nb", "model!test", "x" * 256, "x" * 100_000])
def test_model_of_an_impossible_name_is_not_found(repository: Path, name: str) -> None:
    """As in Triton."""
    error = refusal(lambda: catalog_of(repository).candidate(name, None))
    assert error.code is ErrorCode.INTERNAL
    assert error.message.startswith(f"failed to load '{name[:99]}")
    assert error.message.endswith("', failed to poll from model repository")


def test_model_in_two_repositories_is_refused(repository: Path, tmp_path: Path) -> None:
    add(tmp_path / "more", "m")
    settings = from_args({"model_repository": [str(repository), str(tmp_path / "more")]})
    error = refusal(lambda: Catalog(settings, KEY).candidate("m", None))
    assert error.message.endswith("model appears in two or more repositories")


def test_config_override_replaces_the_file(repository: Path) -> None:
    text = json.dumps({"backend": "square", "max_batch_size": 2})
    candidate = catalog_of(repository).candidate("m", text)
    assert (candidate.config.name, candidate.config.backend, candidate.config.max_batch_size) == (
        "m",
        "square",
        2,
    )


OVERRIDES = [
    ("{", "Invalid config override: "),
    ("", "Invalid config override: "),
    ('{"no_such_field": 1}', "Invalid config override: "),
    (
        '{"name": "other", "backend": "identity"}',
        "unexpected directory name 'm' for model 'other', directory name must equal model name",
    ),
    ('{"backend": "identity", "default_model_filename": "../../secret"}', "leads out of"),
    (
        '{"backend": "identity", "output": [{"name": "o", "label_filename": "/etc/passwd"}]}',
        "label file path",
    ),
    ('{"backend": "identity", "max_batch_size": -1}', "'max_batch_size' must be non-negative value for m"),
    (
        '{"backend": "tensorrt", "platform": "tensorrt_plan", "instance_group": [{}], "max_batch_size": 4,'
        ' "dynamic_batching": {"preferred_batch_size": [8]}}',
        "dynamic batching preferred size must be <= max batch size for m",
    ),
]


@pytest.mark.parametrize(("text", "expected"), OVERRIDES)
def test_bad_config_override_is_refused(repository: Path, text: str, expected: str) -> None:
    error = refusal(lambda: catalog_of(repository).candidate("m", text))
    assert error.message.startswith("failed to load 'm', failed to poll from model repository: ")
    assert expected in error.message
    assert error.code is ErrorCode.INTERNAL


def test_what_a_backend_completes_is_not_refused_before(repository: Path) -> None:
    text = '{"backend": "onnxruntime", "dynamic_batching": {"preferred_batch_size": [4]}}'
    assert catalog_of(repository).candidate("m", text).config.max_batch_size == 0
    with pytest.raises(InferError, match="must be <= max batch size"):
        catalog_of(repository, disable_auto_complete_config=True).candidate("m", text)


def test_inputs_that_nothing_completes_are_checked_before_files_are_looked_for(repository: Path) -> None:
    text = '{"backend": "onnxruntime", "input": [{"name": "x", "dims": [1]}]}'
    assert catalog_of(repository).candidate("m", text)
    with pytest.raises(InferError, match="model input 'x' must specify 'data_type' for m"):
        catalog_of(repository, disable_auto_complete_config=True).candidate("m", text)


def test_instance_groups_are_checked_before_files_are_looked_for(repository: Path) -> None:
    text = '{"backend": "onnxruntime", "instance_group": [{"kind": "KIND_CPU", "gpus": [1]}]}'
    candidate = catalog_of(repository).candidate("m", text)
    with pytest.raises(InferError, match="has kind KIND_CPU but specifies one or more GPUs"):
        candidate.check(1)


def test_startup_models_by_control_mode(repository: Path) -> None:
    add(repository, "a")
    for arguments, expected in (
        ({}, ["a", "m"]),
        ({"model_control_mode": "poll"}, ["a", "m"]),
        ({"model_control_mode": "explicit"}, []),
        ({"model_control_mode": "explicit", "load_model": ["m", "gone", "m"]}, ["gone", "m"]),
        ({"model_control_mode": "explicit", "load_model": ["*"]}, ["a", "m"]),
    ):
        catalog = catalog_of(repository, **arguments)
        assert catalog.startup_models(catalog.scan()) == expected


def test_candidate_is_unchanged(repository: Path) -> None:
    catalog = catalog_of(repository)
    spec = loaded(catalog.candidate("m", None))
    assert catalog.candidate("m", None).unchanged(spec)


def test_changed_file_is_a_change(repository: Path) -> None:
    catalog = catalog_of(repository)
    spec = loaded(catalog.candidate("m", None))
    (repository / "m" / "1" / "weights").write_bytes(b"1")
    assert not catalog.candidate("m", None).unchanged(spec)


def test_touched_configuration_is_no_change(repository: Path) -> None:
    catalog = catalog_of(repository)
    spec = loaded(catalog.candidate("m", None))
    os.utime(repository / "m" / "config.pbtxt", (1, 1))
    assert catalog.candidate("m", None).unchanged(spec)


def test_changed_configuration_is_a_change(repository: Path) -> None:
    catalog = catalog_of(repository)
    spec = loaded(catalog.candidate("m", None))
    add(repository, "m", CONFIG.replace("4", "8"))
    assert not catalog.candidate("m", None).unchanged(spec)


def test_changed_version_policy_is_no_change_of_a_version(repository: Path) -> None:
    add(repository, "m", CONFIG + "version_policy { all {} }", (1, 2))
    catalog = catalog_of(repository)
    spec = loaded(catalog.candidate("m", None), 2)
    add(repository, "m", CONFIG)
    candidate = catalog.candidate("m", None)
    assert candidate.versions == (2,)
    assert candidate.unchanged(spec)


def test_change_in_another_version_is_no_change(repository: Path) -> None:
    add(repository, "m", CONFIG, (1, 2))
    catalog = catalog_of(repository)
    spec = loaded(catalog.candidate("m", None), 2)
    (repository / "m" / "1" / "weights").write_bytes(b"1")
    assert catalog.candidate("m", None).unchanged(spec)


def test_override_and_its_removal_are_changes(repository: Path) -> None:
    catalog = catalog_of(repository)
    override = catalog.candidate("m", '{"backend": "identity", "max_batch_size": 2}')
    assert not override.unchanged(loaded(catalog.candidate("m", None)))
    assert not catalog.candidate("m", None).unchanged(loaded(override))


def test_spec_of_another_deployment_is_a_change(repository: Path) -> None:
    """Its channels have the old key, and its replicas the old settings."""
    spec = loaded(catalog_of(repository).candidate("m", None))
    assert not Catalog(settings_of(repository), b"k" * 32).candidate("m", None).unchanged(spec)
    other = catalog_of(repository, backend_config=["identity,x=1"])
    assert not other.candidate("m", None).unchanged(spec)


def test_instance_groups_are_left_to_the_replica(repository: Path) -> None:
    """Only the backend knows which it prefers; the replica loads it, and is told the GPUs."""
    add(repository, "m", CONFIG + "instance_group [ { kind: KIND_GPU }, { } ]")
    catalog = catalog_of(repository)
    catalog.gpus = (0, 1)
    candidate = catalog.candidate("m", None)
    kinds = [(group.kind, group.count, *group.gpus) for group in candidate.config.instance_group]
    assert kinds == [(mc.ModelInstanceGroup.KIND_GPU, 0), (mc.ModelInstanceGroup.KIND_AUTO, 0)]
    assert mc.ModelConfig.FromString(candidate.template.config) == candidate.config
    assert candidate.template.gpus == (0, 1)


def test_the_place_of_a_model_is_the_repository_as_it_was_given(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    add(repository, "m")
    add(other, "n")
    settings = from_args({"model_repository": [str(repository), str(other)]})
    both = Catalog(settings, KEY)
    assert both.place("m") == str(repository) and both.place("n") == str(other)
    assert both.place("gone") == str(repository)


def test_the_place_of_a_model_in_a_cloud_is_its_address(tmp_path: Path) -> None:
    cloud = Catalog(from_args({"model_repository": ["s3://bucket/models"]}), KEY)
    assert cloud.place("m") == "s3://bucket/models"
