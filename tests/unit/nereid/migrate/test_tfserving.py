"""What becomes of models of TensorFlow Serving."""

import re
from pathlib import Path

import pytest

from app.protocol.tfserving.signature import labelled_version
from nereid.migrate.plan import MigrationError
from nereid.migrate.tfserving import models
from tests.unit.nereid.migrate.sources import FLOAT, STRING, migrated, refusal, saved_model

CONFIG = """
model_config_list {{
  config {{
    name: 'half' base_path: '{base}' model_platform: 'tensorflow'
    model_version_policy {{ specific {{ versions: 1 versions: 3 }} }}
    version_labels {{ key: 'stable' value: 1 }}
    logging_config {{ sampling_config {{ sampling_rate: 0.1 }} }}
  }}
}}
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for version in ("1", "003"):
        saved_model(tmp_path / "half" / version, serving_default={"x": (FLOAT, [-1, 2]), "s": (STRING, [-1])})
    return tmp_path / "half"


def test_a_configuration_becomes_models(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "models.config"
    file.write_text(CONFIG.format(base=base))
    (model,) = migrated(models(file))
    config = model.config
    assert (config.name, config.platform, config.max_batch_size) == ("half", "tensorflow_savedmodel", 0)
    assert list(config.version_policy.specific.versions) == [1, 3]
    assert [(tensor.name, list(tensor.dims)) for tensor in config.input] == [("s", [-1]), ("x", [-1, 2])]
    assert [(tensor.name, list(tensor.dims)) for tensor in config.output] == [("y", [-1, 2])]
    assert labelled_version(config, "stable") == "1"
    assert {item.target for item in model.items} == {
        f"{version}/model.savedmodel/{name}"
        for version in (1, 3)
        for name in ("saved_model.pb", "variables/variables.index")
    }
    assert model.notes == ()


def test_batching_parameters_become_a_batcher(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "batching"
    values = {"max_batch_size": 32, "batch_timeout_micros": 500, "num_batch_threads": 3}
    lines = [f"{name} {{ value: {value} }}" for name, value in values.items()]
    file.write_text("\n".join([*lines, "allowed_batch_sizes: 8", "pad_variable_length_inputs: true"]))
    (model,) = migrated(models(base, file))
    config = model.config
    assert (config.max_batch_size, config.dynamic_batching.max_queue_delay_microseconds) == (32, 500)
    assert config.instance_group[0].count == 3
    assert [(list(tensor.dims), tensor.HasField("reshape")) for tensor in config.input] == [
        ([1], True),
        ([2], False),
    ]
    assert any("allowed_batch_sizes" in note for note in model.notes)


@pytest.mark.parametrize(("field", "policy"), [("all {}", "all"), ("latest { num_versions: 2 }", "latest")])
def test_version_policies_are_carried_over(base: Path, tmp_path: Path, field: str, policy: str) -> None:
    file = tmp_path / "models.config"
    old = "specific { versions: 1 versions: 3 }"
    file.write_text(CONFIG.format(base=base).replace(old, field))
    (model,) = migrated(models(file))
    assert model.config.version_policy.WhichOneof("policy_choice") == policy


def test_directories_are_models(base: Path) -> None:
    assert [model.config.name for model in migrated(models(base))] == ["half"]
    assert [model.config.name for model in migrated(models(base.parent))] == ["half"]


def test_what_is_not_carried_over_is_said(tmp_path: Path) -> None:
    directory = saved_model(tmp_path / "m" / "1", other={"x": (FLOAT, [2])}, regress={"x": (FLOAT, [2])})
    warmup = directory / "assets.extra" / "tf_serving_warmup_requests"
    warmup.parent.mkdir()
    warmup.write_bytes(b"")
    (model,) = migrated(models(tmp_path / "m"))
    assert model.config.parameters["TF_SIGNATURE_DEF"].string_value == "other"
    assert "only the signature 'other' is served, not regress" in model.notes
    assert any("warm-up requests" in note for note in model.notes)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("tensorflow", "other"), "is of platform 'other'"),
        (("{base}", "s3://bucket/m"), "is at s3://bucket/m: copy it"),
        (("{base}", "/nowhere"), "has no <version>/saved_model.pb in /nowhere"),
        (("config {{", "config {{ }} config {{"), "has no name or base_path"),
    ],
)
def test_what_cannot_be_migrated_is_refused(
    base: Path, tmp_path: Path, change: tuple[str, str], text: str
) -> None:
    file = tmp_path / "models.config"
    file.write_text(CONFIG.replace(*change).format(base=base))
    assert re.search(text, refusal(models(file)))


@pytest.mark.parametrize(
    "text", [CONFIG.replace("'half'", "half"), "a {" * 2000, "model_config_list { }", "\xff"]
)
def test_a_broken_configuration_is_one_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "models.config"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(MigrationError, match=r"models\.config"):
        list(models(file))


def test_a_broken_graph_is_refused(base: Path) -> None:
    (base / "003" / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    assert re.search("is no SavedModel", refusal(models(base)))
