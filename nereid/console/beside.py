"""The operator's console beside a server: a process of its own, started again when it ends, ended with it."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from app.settings.settings import ServerSettings
from nereid.console.messages import http_url

logger = logging.getLogger(__name__)

_END_S: Final = 2.0
_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 15.0)
"""Before each further start; a console that ran for longer than the last is started at once again."""


@contextmanager
def console_beside(settings: ServerSettings) -> Iterator[None]:
    """Run the console of this server during a block, if the settings ask for one; it may end a bit later."""
    if not settings.console.enabled:
        yield
        return
    url = http_url(settings)
    if not url:
        logger.warning("no console: it asks the server over HTTP, at a port that is known (--http-port)")
        yield
        return
    stop = threading.Event()
    keeper = threading.Thread(target=_keep, args=(_command(settings, url), stop), name="console")
    keeper.start()
    try:
        yield
    finally:
        stop.set()  # the program ends after the thread; the server's own end waits for nothing


def _command(settings: ServerSettings, url: str) -> Sequence[str]:
    """Return the command of a console that ends with this process."""
    place = settings.console
    given = [f"--url={url}", f"--address={place.address}", f"--port={place.port}", f"--parent={os.getpid()}"]
    hosts = [f"--allow-host={host}" for host in settings.http.allow_hosts]
    origins = [f"--allow-origin={origin}" for origin in settings.http.allow_origins]
    names = ("server-cert", "server-key", "root-cert")
    tls = [f"--{name}={path}" for name, path in zip(names, place.certificates or (), strict=False) if path]
    return [sys.executable, "-m", "nereid", "console", *given, *hosts, *origins, *tls]


def _keep(command: Sequence[str], stop: threading.Event) -> None:
    """Start the console, and again whenever it ends, until `stop` is set."""
    further = 0
    while not stop.is_set():
        began = time.monotonic()
        try:
            _run(command, stop)
        except OSError as error:
            logger.warning("the console cannot be started: %s", error)
        if time.monotonic() - began > _PAUSES_S[-1]:
            further = 0
        if stop.wait(_PAUSES_S[min(further, len(_PAUSES_S) - 1)]):
            return
        further += 1
        logger.warning("the console has ended, and is started again")


def _run(command: Sequence[str], stop: threading.Event) -> None:
    # A session of its own: Ctrl-C is for the server, which ends it.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        while process.poll() is None and not stop.wait(0.25):
            pass
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
