"""Runs the server as a program: joins or starts a cluster, waits for the models, drains on a signal."""

import signal
import threading
import time
from functools import partial
from types import FrameType

from app.ray_adapter.cluster import join_or_start
from app.ray_adapter.supervision import Supervisor
from app.settings.ports import check_ports
from app.settings.settings import SETTINGS, ServerSettings
from nereid import workers
from nereid.console.beside import console_beside
from nereid.console.console import Console
from nereid.console.systemd import notify
from nereid.controller import CALLBACK

_POLL_S = 0.2
_SIGNAL_S = 1.0


def run(settings: ServerSettings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status (0 after a drain, 1 when the start failed).

    The program ends by itself, with status 1, when its cluster breaks or a stop takes too long.

    Without a reachable cluster (`RAY_ADDRESS`), a local one is started, with token authentication.

    Raises:
        ClusterError: there is no cluster.
        SettingsError: a port is taken.
    """
    check_ports(settings)
    console = Console(settings)
    with console.ray_start():
        owned = _join_or_start(settings)
    from ray import serve

    from app.ray_adapter.serve.applications import ask_often
    from nereid.server.main import APPLICATION, compose, is_ours, new_key, remove_files

    ask_often()
    key = new_key()
    supervisor = Supervisor(owned, APPLICATION, settings.server.exit_timeout_s, partial(remove_files, key))
    stop = _stop_on_signal(supervisor)  # after ray.init, which installs handlers of its own
    try:
        serve.start(proxy_location="Disabled")
        target = serve.RunTarget(compose(settings, key), APPLICATION, None, external_scaler_enabled=True)
        serve.run_many([target])
        if not _loaded(stop, console):
            return 1
        supervisor.ready()
        with console_beside(settings):
            stop.until_set()
        print(f"Signal ({stop.number}) received.", flush=True)
        notify(STOPPING=1, STATUS="answering the requests in flight")
        return 0
    finally:
        supervisor.leave(is_ours)


def _join_or_start(settings: ServerSettings) -> bool:
    """Join a cluster, or start one; return whether it was started."""
    return join_or_start(
        loopback=settings.cluster.channel_address == SETTINGS["channel_address"].default,
        import_from_cwd=False,  # a file there named as a module must not replace it
        log_to_driver=True,
        configure_logging=False,
        include_dashboard=settings.cluster.allow_dashboard,
        controller=CALLBACK,
        workers=workers.__name__ if settings.cluster.fork_workers else "",
        meanwhile=("fastapi", "app.ray_adapter.local.lean_serve", "nereid.server.main"),
    )


class StopSignal(threading.Event):
    """Set by SIGTERM or SIGINT; `number` is the signal's."""

    number = 0

    def until_set(self) -> None:
        """Wait for a signal, on the main thread."""
        # Any thread may take a signal that was sent while the process was stopped; Python calls its handler
        # on the main thread, which it does not wake.
        while not self.wait(_SIGNAL_S):
            pass


def _stop_on_signal(supervisor: Supervisor) -> StopSignal:
    stop = StopSignal()

    def handle(number: int, frame: FrameType | None) -> None:
        supervisor.bound_stop()
        stop.number = number
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop


def _loaded(stop: threading.Event, console: Console) -> bool:
    """Wait for the models of the start; return whether the server goes on, see `Console.ended`."""
    from nereid.server.main import routing_table

    while not stop.is_set():
        table = routing_table()
        if table.initialised or table.failed:
            return console.ended(table)
        console.loading()
        time.sleep(_POLL_S)
    return True
