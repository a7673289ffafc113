"""Writing migrated models."""

import os
from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from nereid.migrate.plan import (
    Item,
    MigratedModel,
    MigrationError,
    files_below,
    inside,
    read_bounded,
)
from nereid.migrate.writing import write


def model(*items: Item) -> MigratedModel:
    return MigratedModel(mc.ModelConfig(name="m", backend="python"), items)


def test_files_are_linked_unless_they_are_to_be_copied(tmp_path: Path) -> None:
    source = tmp_path / "weights"
    source.write_bytes(b"123")
    items = (Item("1/weights", source), Item("1/model.py", content=b"x"))
    written = write(model(*items), tmp_path / "linked")
    assert (written.files, written.linked) == (3, 1)
    assert os.path.samefile(tmp_path / "linked" / "m" / "1" / "weights", source)
    assert write(model(*items), tmp_path / "copied", copy=True).linked == 0
    assert (tmp_path / "copied" / "m" / "1" / "weights").read_bytes() == b"123"
    assert 'backend: "python"' in (tmp_path / "copied" / "m" / "config.pbtxt").read_text()


def test_a_model_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    write(model(), tmp_path)
    with pytest.raises(MigrationError, match="exists already"):
        write(model(), tmp_path)


def test_a_model_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="cannot write"):
        write(model(Item("1/a", content=b"x"), Item("1/b", tmp_path / "absent")), tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a\\..\\..\\x", "C:/x", "~/x", "a\x00b"]
)
def test_paths_stay_inside(path: str) -> None:
    with pytest.raises(MigrationError, match="leads out of its directory"):
        inside(path)


def test_links_out_of_a_source_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to("/etc/passwd")
    with pytest.raises(MigrationError, match="is a link that leads out"):
        list(files_below(tmp_path / "a", "1/"))


def test_long_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(5))
    assert len(read_bounded(tmp_path / "a", 5)) == 5
    with pytest.raises(MigrationError, match="more than 4 bytes"):
        read_bounded(tmp_path / "a", 4)
