"""Ray's helper processes that a server does without: 270 MiB, and half of the processor time of a start."""

import logging
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from app.ray_adapter.local import stand_in

logger = logging.getLogger(__name__)

_AGENTS: Final = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
_READ_S: Final = 0.2
_SAME_TIME_S: Final = 1.0
_REPEAT_S: Final = 5.0


def without_agents(command: Sequence[str]) -> list[str]:
    """Return a command of Ray in which, if it is the raylet's, stand-ins replace the agents."""
    return [_replaced(word) if word.startswith(_AGENTS) else word for word in command]


def _replaced(word: str) -> str:
    option, _, agent = word.partition("=")
    stands_in = [sys.executable, "-I", "-S", stand_in.__file__, *shlex.split(agent)]
    return f"{option}={subprocess.list2cmdline(stands_in)}"


@contextmanager
def without_helpers() -> Iterator[None]:
    """Start Ray without its autoscaler and its dashboard's server, and with its log monitor as a thread.

    The autoscaler starts and stops machines; the dashboard's server answers `ray list` and `ray job`.
    """
    from ray._private.node import Node

    replaced: dict[str, Any] = {
        "start_monitor": lambda node: None,
        "start_api_server": lambda node, **options: None,
        "start_log_monitor": _start_reading_logs,
    }
    originals = {name: getattr(Node, name) for name in replaced}
    for name, replacement in replaced.items():
        setattr(Node, name, replacement)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(Node, name, original)


def _start_reading_logs(node: Any) -> None:
    threading.Thread(target=_read_logs, args=(node,), name="worker-logs", daemon=True).start()


def _read_logs(node: Any) -> None:
    """Do what the process of Ray's log monitor does: send what workers print to the driver."""
    from ray._private.log_monitor import LogMonitor, is_proc_alive

    client, logs = node.get_gcs_client(), node.get_logs_dir_path()
    monitor: Any = LogMonitor(node.node_ip_address, logs, client, is_proc_alive)
    listed = 0.0
    while True:
        try:
            # Ray lists the directory six times at each turn. Each new file changes its time, which may be
            # that of one before.
            if os.stat(logs).st_mtime > listed - _SAME_TIME_S:
                listed = time.time()
                monitor.update_log_filenames()
            monitor.open_closed_files()
            if not monitor.check_log_files_and_publish_updates():
                time.sleep(_READ_S)
        except Exception:  # the cluster ends
            logger.debug("reading the logs of workers", exc_info=True)
            time.sleep(_REPEAT_S)
