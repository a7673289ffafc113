"""Errors without a Ray cluster to serve on."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.ray_adapter.cluster import ClusterError, wait_joinable
from tests.server import ROOT, free_port


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_unreachable_cluster_is_reported() -> None:
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(ClusterError) as raised:
        wait_joinable(address, 0.0)
    text = f"error: creating server: Unavailable - no answer at RAY_ADDRESS '{address}': "
    assert str(raised.value).startswith(text) and "\n" not in str(raised.value)


def test_a_killed_cluster_of_ray_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    file = tmp_path / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    file.write_text(f"127.0.0.1:{closed_port()}")
    with pytest.raises(ClusterError, match=f"no answer at the address of 'ray start' .*removing '{file}'"):
        wait_joinable("", 0.0)


def test_a_file_of_ray_start_without_an_address_is_left_to_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    file = tmp_path / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    for content in (b"", b"auto", b"\xff\xfe"):
        file.write_bytes(content)
        wait_joinable("", 0.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_reachable_cluster_is_accepted(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wait_joinable(f"{host}:{listener.getsockname()[1]}", 0.0)
    wait_joinable("auto", 0.0)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("RAY_ADDRESS", "nonsense", "cannot join the Ray cluster at 'nonsense': Invalid address"),
        ("RAY_TMPDIR", "/dev/null", "cannot start Ray: [Errno 20] Not a directory"),
    ],
)
@pytest.mark.parametrize("command", ["nereid", "nereid_serve"])
def test_failed_start_prints_one_line_and_exits_with_1(
    tmp_path: Path, command: str, name: str, value: str, reason: str
) -> None:
    ports = [f"--{front}-port={free_port()}" for front in ("http", "grpc", "metrics")]
    arguments = [f"--model-repository={tmp_path}", *ports] if command == "nereid" else ["serve_config.yaml"]
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    ended = subprocess.run(
        [sys.executable, "-c", f"from nereid.commands import {command}; {command}()", *arguments],
        cwd=ROOT,
        env={**env, "HOME": str(tmp_path), name: value},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(f"error: creating server: Unavailable - {reason}")
