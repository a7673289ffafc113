"""The command `nereid migrate`."""

import json
from pathlib import Path

import pytest

from nereid.commands import migrate
from nereid.server.cli import main
from tests.server import free_port
from tests.unit.nereid.migrate.sources import FLOAT, archive, saved_model
from tests.unit.nereid.migrate.test_verify import METADATA, server

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> str:
    saved_model(tmp_path / "m" / "1", serving_default={"x": (FLOAT, [-1, 2])}, other={"x": (FLOAT, [1])})
    return str(tmp_path / "m")


def test_models_are_written_and_told_of(source: str, tmp_path: Path, capsys: Capture) -> None:
    assert migrate.main(["tfserving", source, "--to", str(tmp_path / "to")]) == 0
    assert (tmp_path / "to" / "m" / "1" / "model.savedmodel" / "saved_model.pb").is_file()
    out = capsys.readouterr().out
    assert "m: 3 files" in out and "note: only the signature 'serving_default' is served" in out


def test_a_second_time_says_what_is_there(source: str, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["tfserving", source, "--to", str(tmp_path / "to"), "--json"]
    assert migrate.main(arguments) == 0
    (fields,) = json.loads(capsys.readouterr().out)
    assert (fields["model"], fields["written"]["files"], fields["verified"]) == ("m", 3, None)
    assert migrate.main(arguments) == 1
    assert "exists already" in json.loads(capsys.readouterr().out)[0]["error"]


def test_nothing_to_migrate_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    for source in (tmp_path, tmp_path / "none"):
        assert migrate.main(["tfserving", str(source), "--to", str(tmp_path / "to")]) == 2
        assert str(source) in capsys.readouterr().err


def test_answers_are_compared_and_models_loaded(source: str, tmp_path: Path, capsys: Capture) -> None:
    predict, load = "/v1/models/m:predict", "/v2/repository/models/m/load"
    old_answers = {"/v1/models/m/metadata": METADATA, predict: {"outputs": [1.0]}}
    arguments = ["tfserving", source, "--load", "--json", "--to"]
    for number, (answer, status) in enumerate([({"outputs": [1.0]}, 0), ({"outputs": [2.0]}, 1)]):
        with server(old_answers) as (old, _), server({predict: answer, load: {}}) as (new, bodies):
            urls = ["--verify", f"http://{old}", "--nereid", f"http://{new}"]
            assert migrate.main([*arguments, str(tmp_path / str(number)), *urls]) == status
        (fields,) = json.loads(capsys.readouterr().out)
        assert bool(fields["verified"]["difference"]) == bool(status)
        assert bodies[0] == b"{}", "loaded before it is asked"


def test_model_that_is_written_and_not_loaded_is_both(source: str, tmp_path: Path, capsys: Capture) -> None:
    closed = f"http://127.0.0.1:{free_port()}"
    assert (
        migrate.main(["tfserving", source, "--to", str(tmp_path / "to"), "--load", "--nereid", closed]) == 1
    )
    out = capsys.readouterr().out
    assert (
        out.startswith("m: 3 files") and f"  not loaded: {closed}/v2/repository/models/m/load does not" in out
    )


def test_torchserve_needs_an_input_to_compare(tmp_path: Path, capsys: Capture) -> None:
    source = str(archive(tmp_path / "a.mar"))
    urls = ["--verify", "http://old", "--nereid", "http://new"]
    for arguments, text in ((urls, "needs --input FILE"), (urls[:2], "need --nereid URL")):
        with pytest.raises(SystemExit) as ended:
            migrate.main(["torchserve", source, "--to", str(tmp_path / "to"), *arguments])
        assert ended.value.code == 2 and text in capsys.readouterr().err


def test_help_has_an_example(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["migrate", "--help"])
    assert (
        ended.value.code == 0
        and "nereid migrate torchserve model_store --to repository" in capsys.readouterr().out
    )


def test_each_old_server_has_an_example(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["migrate", "--help"])
    out = capsys.readouterr().out
    assert all(f"  nereid migrate {kind} " in out for kind in migrate._SOURCES)


def test_answers_of_bentoml_cannot_be_compared(tmp_path: Path, capsys: Capture) -> None:
    urls = ["--verify", "http://old", "--nereid", "http://new"]
    with pytest.raises(SystemExit) as ended:
        migrate.main(["bentoml", str(tmp_path), "--to", str(tmp_path / "to"), *urls])
    assert ended.value.code == 2 and "which bentoml has not" in capsys.readouterr().err
