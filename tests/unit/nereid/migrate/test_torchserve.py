"""What becomes of archives of TorchServe."""

import json
import re
import zipfile
from pathlib import Path

import pytest

from nereid.migrate import torchserve
from nereid.migrate.plan import MigrationError
from nereid.migrate.torchserve import models
from nereid.migrate.writing import write
from tests.unit.nereid.migrate.sources import archive, migrated, refusal


def test_an_archive_becomes_a_python_model(tmp_path: Path) -> None:
    (model,) = migrated(models(archive(tmp_path / "doubler.mar", requirementsFile="requirements.txt")))
    config = model.config
    assert (config.name, config.backend, config.max_batch_size) == ("doubler", "python", 1)
    assert [tensor.name for tensor in config.input] == ["names", "content_types", "parts"]
    assert len(model.notes) == 1 and "requirements.txt" in model.notes[0]
    write(model, tmp_path / "to")
    version = tmp_path / "to" / "doubler" / "2"
    assert (version / "archive" / "factor.json").read_text() == "2"
    assert (version / "model.py").read_bytes() == torchserve.ADAPTER.read_bytes()


def test_settings_become_batches_and_instances(tmp_path: Path) -> None:
    config = "minWorkers: 3\nbatchSize: 4\nmaxBatchDelay: 50\nresponseTimeout: 10\n"
    source = archive(tmp_path / "doubler.mar", {"model-config.yaml": config}, configFile="model-config.yaml")
    (model,) = migrated(models(source))
    assert (model.config.max_batch_size, model.config.instance_group[0].count) == (4, 3)
    assert model.config.dynamic_batching.max_queue_delay_microseconds == 50_000
    assert model.notes == ("responseTimeout of the model's settings is not carried over",)


def test_config_properties_name_store_and_settings(tmp_path: Path) -> None:
    archive(tmp_path / "store" / "doubler.mar")
    declared = {"doubler": {"2.0": {"marName": "doubler.mar", "batchSize": 8, "minWorkers": 2}}}
    file = tmp_path / "config.properties"
    file.write_text(f"# comment\nmodel_store=store\nmodels={json.dumps(declared)}\njob_queue_size=10\n")
    (model,) = migrated(models(file))
    assert (model.config.max_batch_size, model.config.instance_group[0].count) == (8, 2)
    assert model.notes == ("job_queue_size of config.properties is not carried over",)


@pytest.mark.parametrize(
    ("handler", "noted"),
    [
        ("object_detector", "torchserve"),
        ("package.module", "importable"),
        ("handler.py:f", ""),
        ("handler", ""),
    ],
)
def test_handlers_of_others_are_noted(tmp_path: Path, handler: str, noted: str) -> None:
    (model,) = migrated(models(archive(tmp_path / "a.mar", handler=handler)))
    assert noted in "".join(model.notes) and bool(noted) == bool(model.notes)


@pytest.mark.parametrize("name", ["../../evil.py", "/etc/evil", "a/../../evil"])
def test_paths_out_of_an_archive_are_refused(tmp_path: Path, name: str) -> None:
    assert re.search("leads out of its directory", refusal(models(archive(tmp_path / "a.mar", {name: "x"}))))


def test_links_in_an_archive_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.mar")
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr(entry, "/etc/passwd")
    assert re.search("link is a link", refusal(models(path)))


def test_large_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.mar", {"zeros": "0" * 100_000})
    monkeypatch.setattr(torchserve, "MAX_UNPACKED", 100_000)
    assert re.search("more than 100000 bytes unpacked", refusal(models(path)))


@pytest.mark.parametrize(
    ("files", "manifest", "text"),
    [
        ({"MAR-INF/MANIFEST.json": "{"}, {}, "MAR-INF/MANIFEST.json is no JSON"),
        ({"MAR-INF/MANIFEST.json": "[]"}, {}, "MAR-INF/MANIFEST.json: Expected `object`, got `array`"),
        ({}, {"handler": ""}, "names no handler"),
        ({}, {"handler": "absent.py:f"}, "the handler 'absent.py:f' is not in "),
        ({}, {"handler": "absent"}, "the handler 'absent' is not in "),
        ({}, {"handler": "../../other.py"}, "the handler '../../other.py' is not in "),
        ({}, {"serializedFile": "weights.pt"}, "the file 'weights.pt' of MAR-INF/MANIFEST.json is not in "),
        ({}, {"modelFile": "/etc/hosts"}, "'/etc/hosts' leads out of its directory"),
        ({}, {"modelName": 3}, "Expected `str`, got `int` - at `$.model.modelName`"),
        ({"c.yaml": "batchSize: [1"}, {"configFile": "c.yaml"}, "c.yaml cannot be read as YAML"),
        (
            {"c.yaml": "batchSize: !!python/object/apply:os.system [id]"},
            {"configFile": "c.yaml"},
            "Expected `int`, got `array` - at `$.batchSize`",
        ),
        (
            {"c.yaml": "batchSize: x"},
            {"configFile": "c.yaml"},
            "Expected `int`, got `str` - at `$.batchSize`",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bad_archives_are_refused(
    tmp_path: Path, files: dict[str, str], manifest: dict[str, str], text: str
) -> None:
    assert text in refusal(models(archive(tmp_path / "a.mar", files, **manifest)))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mar").write_bytes(b"PK")
    assert re.search("is no model archive", refusal(models(tmp_path / "a.mar")))
    with pytest.raises(MigrationError, match=r"there is no \.mar"):
        list(models(tmp_path / "none"))
