"""The console's process beside a server: started again when it ends, and ended with the server."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from urllib.request import urlopen

from app.core.system.processes import descendants
from app.settings.load import from_args
from nereid.console.beside import console_beside
from tests.server import free_port
from tests.waiting import block_until

ROOT = Path(__file__).resolve().parents[4]


def consoles_of(pid: int) -> list[int]:
    return [each.pid for each in descendants(pid) if b"console" in _command(each.pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_console_is_started_again_and_ends_with_the_block(tmp_path: Path) -> None:
    port = free_port()
    settings = from_args({"model_repository": str(tmp_path), "allow_console": "true", "console_port": port})
    with console_beside(settings):
        block_until(lambda: answers(port), timeout=60)
        (first,) = consoles_of(os.getpid())
        os.kill(first, signal.SIGKILL)
        block_until(lambda: answers(port) and consoles_of(os.getpid()) not in ([], [first]), timeout=60)
    block_until(lambda: not consoles_of(os.getpid()), timeout=60)
    assert not answers(port)


def test_no_console_is_started_unasked(tmp_path: Path) -> None:
    with console_beside(from_args({"model_repository": str(tmp_path)})):
        assert consoles_of(os.getpid()) == []


def test_console_ends_when_the_server_is_killed(tmp_path: Path) -> None:
    port = free_port()
    program = textwrap.dedent(
        f"""
        import time
        from nereid.internals import load_internals
        load_internals()
        from app.settings.load import from_args
        from nereid.console.beside import console_beside
        flags = {{"model_repository": {str(tmp_path)!r}, "allow_console": "true", "console_port": {port}}}
        with console_beside(from_args(flags)):
            time.sleep(600)
        """
    )
    server = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        block_until(lambda: answers(port), timeout=60)
        (console,) = consoles_of(server.pid)
    finally:
        server.kill()
        server.wait()
    block_until(lambda: not _command(console), timeout=30)
    assert not answers(port)
