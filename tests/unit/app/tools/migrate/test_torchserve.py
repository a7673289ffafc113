"""What becomes of archives of TorchServe."""

import json
import zipfile
from pathlib import Path

import pytest

from app.tools.migrate import torchserve
from app.tools.migrate.plan import MigrationError, write
from app.tools.migrate.torchserve import models
from tests.unit.app.tools.migrate.sources import archive


def test_an_archive_becomes_a_python_model(tmp_path: Path) -> None:
    (model,) = models(archive(tmp_path / "doubler.mar", requirementsFile="requirements.txt"))
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
    (model,) = models(source)
    assert (model.config.max_batch_size, model.config.instance_group[0].count) == (4, 3)
    assert model.config.dynamic_batching.max_queue_delay_microseconds == 50_000
    assert model.notes == ("responseTimeout of the model's settings is not carried over",)


def test_config_properties_name_store_and_settings(tmp_path: Path) -> None:
    archive(tmp_path / "store" / "doubler.mar")
    declared = {"doubler": {"2.0": {"marName": "doubler.mar", "batchSize": 8, "minWorkers": 2}}}
    file = tmp_path / "config.properties"
    file.write_text(f"# comment\nmodel_store=store\nmodels={json.dumps(declared)}\njob_queue_size=10\n")
    (model,) = models(file)
    assert (model.config.max_batch_size, model.config.instance_group[0].count) == (8, 2)
    assert model.notes == ("job_queue_size of config.properties is not carried over",)


@pytest.mark.parametrize(
    ("handler", "noted"),
    [("object_detector", "torchserve"), ("package.module", "importable"), ("h.py:f", "")],
)
def test_handlers_of_others_are_noted(tmp_path: Path, handler: str, noted: str) -> None:
    (model,) = models(archive(tmp_path / "a.mar", handler=handler))
    assert noted in "".join(model.notes) and bool(noted) == bool(model.notes)


@pytest.mark.parametrize("name", ["../../evil.py", "/etc/evil", "a/../../evil"])
def test_paths_out_of_an_archive_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MigrationError, match="leads out of its directory"):
        list(models(archive(tmp_path / "a.mar", {name: "x"})))


def test_links_in_an_archive_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.mar")
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr(entry, "/etc/passwd")
    with pytest.raises(MigrationError, match="link is a link"):
        list(models(path))


def test_large_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.mar", {"zeros": "0" * 100_000})
    monkeypatch.setattr(torchserve, "MAX_UNPACKED", 100_000)
    with pytest.raises(MigrationError, match="more than 100000 bytes unpacked"):
        list(models(path))


@pytest.mark.parametrize(
    ("files", "manifest", "text"),
    [
        ({"MAR-INF/MANIFEST.json": "{"}, {}, "no MAR-INF/MANIFEST.json"),
        ({"MAR-INF/MANIFEST.json": "[]"}, {}, "no MAR-INF/MANIFEST.json"),
        ({}, {"handler": ""}, "names no model or handler"),
        ({"c.yaml": "!!python/object/apply:os.system [id]"}, {"configFile": "c.yaml"}, "cannot be read"),
        ({"c.yaml": "batchSize: x"}, {"configFile": "c.yaml"}, "batchSize is 'x', no number"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bad_archives_are_refused(
    tmp_path: Path, files: dict[str, str], manifest: dict[str, str], text: str
) -> None:
    with pytest.raises(MigrationError, match=text):
        list(models(archive(tmp_path / "a.mar", files, **manifest)))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mar").write_bytes(b"PK")
    with pytest.raises(MigrationError, match="is no model archive"):
        list(models(tmp_path / "a.mar"))
    with pytest.raises(MigrationError, match=r"there is no \.mar"):
        list(models(tmp_path / "none"))
