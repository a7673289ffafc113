"""The check of a Serve configuration before it is run."""

from pathlib import Path

import pytest

from app.settings.flag.errors import SettingsError
from nereid.server.check_config import check

CONFIG = """
applications:
  - name: nereid
    import_path: nereid:build
    args: {{model_repository: {repository}, {setting}: {value}}}
"""


def write(tmp_path: Path, setting: str, value: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(repository=tmp_path, setting=setting, value=value))
    return path


def test_valid_configuration_is_accepted(tmp_path: Path) -> None:
    check(write(tmp_path, "http_port", "9000"))


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("http_prot", "9000", "unknown setting 'http_prot'; did you mean 'http_port'?"),
        (
            "load_model",
            "simple",
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
    ],
)
def test_wrong_setting_is_reported_in_one_line(tmp_path: Path, setting: str, value: str, text: str) -> None:
    path = write(tmp_path, setting, value)
    with pytest.raises(SettingsError) as caught:
        check(path)
    assert str(caught.value) == f"{path}: {text}"


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        check(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no configuration of Ray Serve: it has no list 'applications'"),
        (b"just text", "no configuration of Ray Serve: it has no list 'applications'"),
        (b"applications: 3", "no configuration of Ray Serve: it has no list 'applications'"),
        (b'name: "m"\nbackend: "python"', "no configuration of Ray Serve: it has no list 'applications'"),
        (b"input [ { name: 1 } ]", "no configuration of Ray Serve: "),
        (b"\x80\x01", "no configuration of Ray Serve: "),
    ],
)
def test_a_file_that_is_no_configuration_is_one_sentence(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        check(path)
    assert str(caught.value).startswith(f"{path}: {text}") and "\n" not in str(caught.value)
