"""The console of a server: what is printed at its start, when it is ready, and when its start fails."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.core.files.private_files import state_directory
from app.core.installed.installation import server_version
from app.native.choice import described
from app.ray_adapter.cluster_environment import cluster_addresses, cluster_environment
from app.ray_adapter.worker_output import divert_ray_output, open_ray_log
from app.routing.table import RoutingTable
from app.settings.settings import ServerSettings
from nereid.console import messages
from nereid.console.server_record import ServerRecord, birth_of, write_record
from nereid.console.systemd import notify_ready, notify_starting

_PATIENCE_S: Final = 5.0
"""Time between two signs of life while Ray starts."""
_OUTPUT_S: Final = 0.5
"""Longest time in which what workers have printed arrives here: Ray looks for it every 0.1 seconds."""


class Console:
    """Prints the messages of one start; the first of them when it is made."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._started = time.monotonic()
        self._ray_log: logging.Handler | None = None
        self._table_printed = threading.Event()
        self._dashboard = ""
        self._told = 0.0
        _say(messages.starting(settings))
        notify_starting("starting Ray")

    @contextmanager
    def ray_start(self) -> Iterator[None]:
        """Print a line every few seconds while Ray starts; then send its messages where they belong."""
        done = threading.Event()
        waiting = threading.Thread(target=self._wait, args=(done,), daemon=True)
        waiting.start()
        try:
            yield
        finally:
            done.set()
            waiting.join()
        self._divert()
        self._record()
        _say(messages.models_loading(self._seconds))

    def loading(self) -> None:
        """Let the system know that a start goes on; call it again and again while models load."""
        if time.monotonic() - self._told >= _PATIENCE_S:
            self._told = time.monotonic()
            notify_starting("loading the models")

    def ended(self, table: RoutingTable) -> bool:
        """Print what has become of the start, behind the table of the models, which the manager prints.

        Returns:
            Whether the server goes on: every model of the start is loaded, or `--exit-on-error` is off; and
            Vertex AI, if it is served, has its model.
        """
        if self._settings.repository.exit_on_error and not table.all_loaded:
            time.sleep(_OUTPUT_S)  # the reasons, of all replicas, come first
            print(messages.failed(table, self._log_path), file=sys.stderr, flush=True)
            return False
        if fault := messages.platform_fault(self._settings, table):
            print(fault, file=sys.stderr, flush=True)
            return False
        self._table_printed.wait(_OUTPUT_S)
        seconds, log = self._seconds, self._log_path
        _say(messages.ready(self._settings, table, seconds, log, os.getpid(), self._dashboard))
        notify_ready(messages.counted(table), messages.http_url(self._settings))
        return True

    def _divert(self) -> None:
        if self._settings.cluster.log_ray:
            return
        try:
            self._ray_log = open_ray_log()
        except OSError as error:
            print(f"warning: the messages of Ray are printed: {error}", file=sys.stderr)
        else:
            self._table_printed = divert_ray_output(self._ray_log).table_printed

    def _record(self) -> None:
        """Let `nereid status` find this server until it ends."""
        settings, pid = self._settings, os.getpid()
        ray, self._dashboard = cluster_addresses()
        record = ServerRecord(
            pid=pid,
            birth=birth_of(pid),
            version=server_version(),
            http=messages.http_url(settings),
            grpc=messages.grpc_address(settings),
            metrics=messages.metrics_url(settings),
            repositories=settings.repository.paths,
            data_plane=described(settings.cluster.data_plane),
            ray=ray,
            dashboard=self._dashboard,
            environment=cluster_environment(),
            log=self._log_path,
            ledger=_ledger(settings),
        )
        try:
            written = write_record(record)
        except OSError as error:
            print(f"warning: 'nereid status' will not find this server: {error}", file=sys.stderr)
        else:
            for path in written:
                atexit.register(path.unlink, missing_ok=True)

    def _wait(self, done: threading.Event) -> None:
        while not done.wait(_PATIENCE_S):
            _say(messages.waiting_for_ray(self._seconds))
            notify_starting("starting Ray")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def _log_path(self) -> str:
        return str(getattr(self._ray_log, "baseFilename", ""))


def _ledger(settings: ServerSettings) -> str:
    """Return where the cost ledger is; "" where there is none, or files have no place."""
    if not settings.cost.enabled:
        return ""
    try:
        return settings.cost.directory or state_directory("cost", settings.model_store.state_directory)
    except OSError:
        return ""


def _say(text: str) -> None:
    print(text, flush=True)
