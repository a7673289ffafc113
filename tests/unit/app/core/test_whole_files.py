"""Files appear whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from app.core.whole_files import write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_by_one_for_this_user_alone(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state.json"
    path.write_text("before")
    write_whole(path, b"after", durable=durable)
    assert path.read_bytes() == b"after" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_prepared_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("before")

    def refuse(descriptor: int) -> None:
        assert os.fstat(descriptor).st_size == len(b"after")
        raise ValueError("not mine")

    with pytest.raises(ValueError):
        write_whole(path, b"after", refuse)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_link_in_place_of_the_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / f".state.json.{os.getpid()}.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        write_whole(tmp_path / "state.json", b"secret")
    assert not (tmp_path / "elsewhere").exists()
