"""What stands in for Ray's agents."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.ray_adapter.local import stand_in
from app.ray_adapter.local.helpers import without_agents
from tests.waiting import block_until

AGENT = "import sys; print('real', *sys.argv[1:], flush=True); sys.stdin.read()"


@contextmanager
def standing_in(directory: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    agent = [sys.executable, "-c", AGENT, "--node-id=n", f"--session-dir={directory}", *options]
    command = [sys.executable, "-I", "-S", stand_in.__file__, *agent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def port(directory: Path, name: str) -> int:
    path = directory / f"{name}_n"
    block_until(path.exists)
    return int(path.read_text())


def test_dashboards_agent_has_no_ports_and_ends_with_the_raylet(tmp_path: Path) -> None:
    with standing_in(tmp_path, "--listen-port=52365") as process:
        for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
            assert port(tmp_path, name) == -1
        assert process.poll() is None
        assert process.communicate(timeout=20)[0] == ""
        assert process.returncode == 0


def test_agent_of_runtime_environments_runs_at_the_first_connection(tmp_path: Path) -> None:
    with standing_in(tmp_path, "--node-ip-address=127.0.0.1", "--runtime-env-agent-port=0") as process:
        number = port(tmp_path, "runtime_env_agent_port")
        socket.create_connection(("127.0.0.1", number), 20).close()
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[0] == "real" and words[-1] == f"--runtime-env-agent-port={number}"
        with socket.socket() as listener:  # its port is free for it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", number))


def test_agent_of_runtime_environments_ends_with_the_raylet(tmp_path: Path) -> None:
    with standing_in(tmp_path, "--node-ip-address=127.0.0.1", "--runtime-env-agent-port=0") as process:
        port(tmp_path, "runtime_env_agent_port")
        assert process.communicate(timeout=20)[0] == ""


def test_raylet_starts_stand_ins_with_the_commands_of_its_agents() -> None:
    command = ["raylet", "--x=1", '--dashboard_agent_command=python -u agent.py "--a=b c"']
    changed = without_agents(command)
    assert changed[:2] == command[:2]
    assert changed[2].startswith(f"--dashboard_agent_command={sys.executable} -I -S {stand_in.__file__} ")
    assert changed[2].endswith('python -u agent.py "--a=b c"')
    assert without_agents(["gcs_server"]) == ["gcs_server"]
