"""The command `tritonserver`."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from app.settings.settings import ServerSettings
from nereid.server.cli import LISTEN_ADDRESS, main, tritonserver


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings of the servers that were run."""
    found: list[ServerSettings] = []

    def run(settings: ServerSettings) -> int:
        found.append(settings)
        return 0

    module = ModuleType("nereid.server.launcher")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nereid.server.launcher", module)
    return found


@pytest.mark.parametrize("start", [tritonserver, lambda words: main(["tritonserver", *words])])
def test_tritonserver_runs_the_server(
    start: Callable[[list[str]], None], ran: list[ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--model-repository", "models", "--model-control-mode=explicit", "--http-port=7000"]
    for address, expected in (("", "127.0.0.1"), ("0.0.0.0", "0.0.0.0")):
        monkeypatch.setenv(LISTEN_ADDRESS, address)
        with pytest.raises(SystemExit) as exited:
            start(words)
        assert exited.value.code == 0
        settings = ran.pop()
        fronts = (settings.http, settings.grpc, settings.metrics)
        assert [front.address for front in fronts] == [expected] * 3
        assert (settings.http.port, settings.repository.control_mode) == (7000, "explicit")


def test_flags_of_tritonserver_come_before_its_variable(
    ran: list[ServerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LISTEN_ADDRESS, "0.0.0.0")
    with pytest.raises(SystemExit):
        tritonserver(["--model-repository=models", "--http-address=127.0.0.2"])
    assert [ran[0].http.address, ran[0].grpc.address] == ["127.0.0.2", "0.0.0.0"]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--foo=1"], "unrecognized option '--foo'"),
        (["status"], "Unexpected argument: status"),
        (["--http-port"], "option '--http-port' requires an argument"),
    ],
)
def test_tritonserver_refuses_as_tritonserver(words: list[str], fault: str) -> None:
    with pytest.raises(SystemExit) as exited:
        tritonserver(words)
    assert exited.value.code == (
        f"tritonserver: {fault}\nUsage: tritonserver [options]\nAll options: tritonserver --help"
    )


def test_help_of_tritonserver_has_its_status_and_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        tritonserver(["--help"])
    assert exited.value.code == 1
    text = capsys.readouterr().out
    assert text.startswith(
        "Usage: tritonserver [options]\n  --help\n\tPrint usage\n\nServer:\n  --id <string>\n"
    )
    assert "nereid COMMAND" not in text
