"""A Ray cluster for this machine alone, whose files belong to this user."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

from app.core.files.private_files import private_root, short_path
from app.core.system.processes import adopt_orphans
from app.ray_adapter.local.attempts import watched_start
from app.ray_adapter.local.changes import applies, check_switch
from app.ray_adapter.local.forking import ForkServer
from app.ray_adapter.local.helpers import without_agents, without_helpers
from app.ray_adapter.local.model_environment import remember_surroundings
from app.ray_adapter.local.sessions import new_session

_PATIENCE: Final = {
    # Ray 2.60 gives its processes 30, 15 and 15 seconds to start: too little on a busy machine. What ends is
    # noticed at once (`attempts.py`).
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "300000",
    # A raylet connects to its object store, a thread of its own: in half of all starts in vain at first. Ray
    # 2.60 tries ten times, once a second.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
    # An agent then ends with its raylet, whose end of a pipe closes; else it would have to look every second.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    # Serve would drain a replica that has failed its health checks, which can no longer do so.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
}
_INTERVALS: Final = {
    # Every replica and every handle would look ten times a second for Serve's metrics, which nobody reads.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",
    # What an idle server costs is the wake-ups of Ray's threads: by default these are 0.1, 0.1, 0.1, 0.2
    # and 0.25 s. Nothing waits for them: objects are small and on this machine, workers end with their
    # replicas, and memory that is about to run out is seen within a second.
    "RAY_object_manager_timer_freq_ms": "1000",
    "RAY_raylet_check_gc_period_milliseconds": "1000",
    "RAY_local_fs_monitor_interval_ms": "1000",
    "RAY_kill_idle_workers_interval_ms": "1000",
    "RAY_memory_monitor_refresh_ms": "1000",
    # What only Ray's autoscaler and its dashboard ask for, each second.
    "RAY_gcs_pull_resource_loads_period_milliseconds": "10000",
    "RAY_io_context_monitor_probe_interval_ms": "10000",
}
# At most: `controller_pace.py` looks when there is something to see. 0.1 by default.
_CONTROLLER_PACE: Final = {"RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1"}
_WITHOUT_DASHBOARD: Final = {
    # Ray 2.60 counts by replica in several processes and forgets none: 1 MiB for each load of a model
    # together. Only its dashboard, and whoever finds the pages of its agents, reads them.
    "RAY_enable_metrics_collection": "false",
    # Times of each callback of an event loop, for a table in Ray's logs.
    "RAY_event_stats": "0",
    # Nobody asks the GCS what became of each call of an actor.
    "RAY_task_events_report_interval_ms": "0",
}


def _set_environment(include_dashboard: bool) -> None:
    """Set the variables by which Ray's processes behave, where the user has not."""
    check_switch()
    found = _PATIENCE | ({} if include_dashboard else _WITHOUT_DASHBOARD)
    found |= _INTERVALS if applies("intervals") else {}
    found |= _CONTROLLER_PACE if applies("controller-pace") else {}
    for name, value in found.items():
        os.environ.setdefault(name, value)


def ray_init(**options: Any) -> None:
    """Import Ray and call `ray.init`."""
    import ray

    ray.init(**options)


def _directory() -> str:
    """Return where Ray's files go; it is made.

    Ray 2.60 gives directories of a session mode 0777 whenever a worker starts, whatever the umask
    (`try_to_create_directory` in ray/_common/utils.py): only the directory above them keeps others out.
    """
    place = os.environ.get("RAY_TMPDIR")
    directory = os.path.join(private_root(place), "ray")
    os.makedirs(directory, exist_ok=True)
    return short_path(directory, place)


def start_cluster(
    include_dashboard: bool = False,
    workers: str = "",
    meanwhile: Iterable[str] = (),
    init: Callable[..., object] = ray_init,
    **options: Any,
) -> None:
    """Start Ray with its files below this user's private directory, and connect to it.

    Args:
        include_dashboard: start Ray's dashboard, and with it all of Ray's helper processes.
        workers: the module that a fork server of Ray's workers prepares by; "" to start them without one.
        meanwhile: modules that this process will need: it imports one while it waits for a process of Ray.
        init: calls `ray.init`; Ray has not been imported before.
        options: further options of `ray.init`.

    Raises:
        OSError: the directory cannot be made, or others may enter it, or its sockets have no place.
        Exception: whatever `ray.init` raises, or `check_switch`.
    """
    _set_environment(include_dashboard)
    remember_surroundings()
    os.umask(0o077)  # inherited by all processes of the cluster, for logs and sockets
    directory = _directory()
    adopt_orphans()
    # It imports Ray while this process does.
    server = ForkServer(Path(directory), workers) if workers and applies("fork-workers") else None
    has_agents = include_dashboard or not applies("agents")

    def adapt(command: Sequence[str]) -> Sequence[str]:
        adapted = command if has_agents else without_agents(command)
        return adapted if server is None else server.starting_workers(adapted)

    needed = iter(meanwhile)
    with ExitStack() as start:
        start.enter_context(new_session(Path(directory)))
        if not include_dashboard and applies("helpers"):
            start.enter_context(without_helpers())
        start.enter_context(watched_start(adapt, partial(_import_next, needed)))
        init(_temp_dir=directory, include_dashboard=include_dashboard, **options)


def _import_next(modules: Iterator[str]) -> None:
    for name in islice(modules, 1):
        import_module(name)
