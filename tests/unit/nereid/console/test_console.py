"""The console of a start, without Ray."""

import atexit
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from app.ray_adapter.worker_output import WorkerOutput
from app.routing.table import RoutingTable
from app.settings.clouds import CloudSettings
from app.settings.cluster import ClusterSettings
from app.settings.settings import RepositorySettings, ServerSettings
from deployments.manager.start import start_tables
from nereid.console import console, server_record
from nereid.console.console import Console
from nereid.console.server_record import running_servers
from tests.unit.app.routing_fakes import entry
from tests.waiting import block_until

SETTINGS = ServerSettings(repository=RepositorySettings(paths=("/models",)))


@pytest.fixture(autouse=True)
def at_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., object]]:
    """What is done when the process ends; the private directory is a temporary one."""
    found: list[Callable[..., object]] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(server_record, "_SHARED", str(tmp_path))
    monkeypatch.setattr(atexit, "register", lambda call, **_: found.append(call))
    monkeypatch.setattr(console, "cluster_addresses", lambda: ("127.0.0.1:6379", ""))
    monkeypatch.setattr(console, "cluster_environment", dict)
    monkeypatch.setattr(console, "_OUTPUT_S", 0)
    return found


@pytest.fixture
def diverted(monkeypatch: pytest.MonkeyPatch) -> list[logging.Handler]:
    found: list[logging.Handler] = []

    def divert(handler: logging.Handler) -> WorkerOutput:
        found.append(handler)
        return WorkerOutput(handler)

    monkeypatch.setattr(console, "divert_ray_output", divert)
    return found


def test_start_is_told_step_by_step(
    diverted: list[logging.Handler],
    at_exit: list[Callable[..., object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(console, "_PATIENCE_S", 0.001)
    printed = ""

    def waited() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "is starting Ray (" in printed

    made = Console(SETTINGS)
    with made.ray_start():
        block_until(waited, "a sign of life")
        assert not diverted
    assert made.ended(RoutingTable(1, True, all_loaded=True))
    lines = (printed + capsys.readouterr().out).splitlines()
    assert lines[0].endswith("is starting with the models of /models")
    assert any(line.startswith("Ray runs after ") for line in lines)
    (handler,), (server,) = diverted, running_servers()
    assert f"  Ray's log  {server.log}" in lines and server.log == vars(handler)["baseFilename"]
    for call in at_exit:
        call()
    assert running_servers() == []


def test_the_banner_waits_for_the_table_of_models_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = WorkerOutput(logging.NullHandler())
    monkeypatch.setattr(console, "_OUTPUT_S", 600)
    monkeypatch.setattr(console, "divert_ray_output", lambda _: output)
    made = Console(SETTINGS)
    with made.ray_start():
        pass
    capsys.readouterr()
    table = RoutingTable(1, True, all_loaded=True)
    ending = threading.Thread(target=made.ended, args=(table,), daemon=True)
    ending.start()
    batch = {"actor_name": "ServeReplica:nereid:repository-manager", "pid": 7, "is_err": False}
    *most, last = "\n".join(start_tables(SETTINGS, table)).splitlines()
    output({**batch, "lines": most})
    assert "Nereid" not in capsys.readouterr().out
    output({**batch, "lines": [last]})
    ending.join(30)
    assert not ending.is_alive() and "ready, without any model" in capsys.readouterr().out


def test_log_ray_leaves_the_output_of_ray_alone(
    diverted: list[logging.Handler], capsys: pytest.CaptureFixture[str]
) -> None:
    made = Console(ServerSettings(cluster=ClusterSettings(log_ray=True)))
    with made.ray_start():
        pass
    assert not made.ended(RoutingTable(1, True))
    assert diverted == [] and "Messages of Ray" not in capsys.readouterr().err


def test_start_goes_on_without_a_private_directory(
    tmp_path: Path, diverted: list[logging.Handler], capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "file"))
        patch.setattr(server_record, "_SHARED", str(tmp_path / "file"))
        with Console(SETTINGS).ray_start():
            pass
    shown = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in shown] == ["warning", "warning"] and not diverted


def test_failed_start_of_ray_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError), Console(SETTINGS).ray_start():
        raise OSError
    assert "Ray runs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("other", "Expect the default model 'other' is loaded"),
        ("", "contains only a single model"),
        ("m", ""),
    ],
)
def test_start_without_the_model_of_vertex_ai_ends(
    model: str, fault: str, at_exit: list[Callable[..., object]], capsys: pytest.CaptureFixture[str]
) -> None:
    clouds = CloudSettings(allow_vertex_ai=True, vertex_ai_default_model=model)
    made = Console(msgspec.structs.replace(SETTINGS, clouds=clouds))
    table = RoutingTable(1, True, (entry("m"), entry("n")), all_loaded=True)
    assert made.ended(table) is not bool(fault)
    told = capsys.readouterr().err
    assert fault in told and ("failed to start Vertex AI service" in told) is bool(fault)
