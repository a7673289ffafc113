"""How a cluster of this machine is started, with a stand-in for `ray.init`."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import services

from app.ray_adapter.local import cluster
from app.ray_adapter.local.cluster import start_cluster


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files; the umask is as before afterwards."""
    monkeypatch.setattr("app.core.files.private_files.SOCKET_ROOT_BYTES", 200)  # no sockets are made
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    umask = os.umask(0o022)
    yield tmp_path
    os.umask(umask)


@pytest.fixture(autouse=True)
def no_adoption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave orphans to init: this process would keep them as zombies, for which other tests wait."""
    monkeypatch.setattr(cluster, "adopt_orphans", lambda: None)


def test_files_are_made_below_the_private_directory(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        given.append(options)
        (temporary / "log").touch()

    monkeypatch.setattr(ray, "init", init)
    start_cluster(include_dashboard=False)
    private = temporary / f"nereid-{os.getuid()}"
    assert given == [{"_temp_dir": str(private / "ray"), "include_dashboard": False}]
    assert private.stat().st_mode & 0o777 == 0o700
    assert (temporary / "log").stat().st_mode & 0o777 == 0o600


def test_directory_that_ray_has_opened_is_used_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories: list[str] = []
    monkeypatch.setattr(ray, "init", lambda _temp_dir, **_: directories.append(_temp_dir))
    start_cluster()
    Path(directories[0]).chmod(0o777)  # as Ray does
    start_cluster()
    assert directories[0] == directories[1]


def test_ray_tmpdir_has_the_private_directory(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(ray, "init", lambda _temp_dir, **_: given.append(_temp_dir))
    monkeypatch.setenv("RAY_TMPDIR", str(temporary / "other"))
    start_cluster()
    assert given == [str(temporary / "other" / f"nereid-{os.getuid()}" / "ray")]


@pytest.mark.usefixtures("temporary")
def test_processes_of_ray_have_sessions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[int] = []
    popen = services.ConsolePopen

    def init(**_: Any) -> None:
        process = services.ConsolePopen(["sleep", "60"], stdout=subprocess.DEVNULL)
        sessions.extend((process.pid, os.getsid(process.pid)))
        process.kill()
        process.wait()
        raise OSError("no cluster")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(OSError, match="no cluster"):
        start_cluster()
    pid, session = sessions
    assert session == pid
    assert services.ConsolePopen is popen


@pytest.mark.usefixtures("temporary")
def test_modules_are_imported_while_processes_of_ray_start(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    after: list[list[str]] = []
    monkeypatch.setattr(cluster, "import_module", imported.append)

    def init(**_: Any) -> None:
        for _each in range(3):
            services.ConsolePopen(["true"]).wait()
            after.append([*imported])

    monkeypatch.setattr(ray, "init", init)
    start_cluster(meanwhile=["first", "second"])
    assert after == [["first"], ["first", "second"], ["first", "second"]]
